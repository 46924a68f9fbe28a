from collections.abc import Iterator

import pytest

from tests.journal.sessions.requests import Sessions


@pytest.fixture
def sessions(place: str) -> Iterator[Sessions]:
    opened = Sessions(place)
    yield opened
    opened.close()
