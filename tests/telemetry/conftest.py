"""Waits for the threads of exporters."""

import threading
from collections.abc import Iterator

import pytest

from tests.polling import until


@pytest.fixture(autouse=True)
def exporters_have_ended() -> Iterator[None]:
    """Wait for the threads of the test's exporters, which draw random numbers for retries: Hypothesis refuses those."""
    before = set(threading.enumerate())
    yield
    until(lambda: not any(thread.name.startswith("Otel") for thread in set(threading.enumerate()) - before))
