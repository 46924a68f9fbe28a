"""Tests with real engines, collected only if KVPROXY_ENGINES names their folder (`make test-engines`)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = os.environ.get("KVPROXY_ENGINES")
CHATS = int(os.environ.get("KVPROXY_CHATS", "1000"))
SEED = int(os.environ.get("KVPROXY_SEED", "0"))
if not FOLDER:
    collect_ignore_glob = ["test_*.py"]

_ROWS = pytest.StashKey[list[tuple[str, str]]]()
Table = Callable[[str, object], None]


@pytest.fixture(scope="session")
def engines() -> Path:
    assert FOLDER
    return Path(FOLDER).resolve()


@pytest.fixture(scope="session")
def chats() -> int:
    return CHATS


@pytest.fixture(scope="session")
def seed() -> int:
    return SEED


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    def add(name: str, figure: object) -> None:
        request.config.stash.setdefault(_ROWS, []).append((name, str(figure)))

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(_ROWS, [])
    if rows:
        terminalreporter.section("results with real engines")
        width = max(len(name) for name, _ in rows)
        for name, figure in rows:
            terminalreporter.line(f"{name:<{width}}  {figure}")
