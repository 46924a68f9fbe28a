from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.sessions.requests import Sessions


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    opened = Sessions(tmp_path)
    yield opened
    opened.close()
