"""A reader who follows a request finds its path in few files: the walk is that of a live request through the code."""

import sys
import threading
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kvproxy.exchange import Exchange
from kvproxy.journal.record import Record
from tests.flow.proxies import QUESTION, ask, checked, proxy
from tests.polling import until

PACKAGE = Path(sys.modules["kvproxy"].__file__ or "").parent


class Walk:
    """Records the thread, the file, and the function of each call that receives an exchange or its record as an argument."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, str]] = []
        self._frames: set[FrameType] = set()  # A coroutine's frame is entered again after each wait.

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or frame in self._frames or not code.co_filename.startswith(str(PACKAGE)):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(isinstance(frame.f_locals.get(name), Exchange | Record) for name in names if name != "self"):
            self._frames.add(frame)
            file = str(Path(code.co_filename).relative_to(PACKAGE))
            self.calls.append((threading.get_ident(), file, code.co_name))

    def files(self, first: str, last: str) -> list[str]:
        """Return the files of the thread that calls `last`, in order, from the call of `first`, each run of a file once."""
        thread = next(thread for thread, _, name in self.calls if name == last)
        calls = [(file, name) for of, file, name in self.calls if of == thread]
        names = [name for _, name in calls]
        start = names.index(first)
        return [file for file, _ in groupby(file for file, _ in calls[start : names.index(last, start) + 1])]


def num_returns(files: Sequence[str]) -> int:
    return len(files) - len(set(files))


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    recorded = Walk()
    threading.setprofile(recorded.profile)
    try:
        with proxy(tmp_path, checked()) as (url, _, _):
            assert ask(url, QUESTION).status_code == 200
            until(lambda: any(name == "record_row" for _, _, name in recorded.calls))
    finally:
        threading.setprofile(None)
    return recorded


def test_a_miss_is_followed_through_few_files(walk: Walk) -> None:
    files = walk.files("_answer", "cache_headers")
    print(" > ".join(files))
    assert len(set(files)) <= 10
    assert num_returns(files) <= 6


def test_a_record_is_followed_through_few_files(walk: Walk) -> None:
    files = walk.files("record_of", "record_row")
    print(" > ".join(files))
    assert len(set(files)) <= 5
