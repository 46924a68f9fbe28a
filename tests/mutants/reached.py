"""Which functions each test calls, recorded once, so that a change is put to the tests that can notice it."""

import ast
import json
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

Place = tuple[str, int]
"""A function: its file, and its first line; 0 for what was generated for a class."""
Codes = set[CodeType]


class Recorder:
    """A plugin of pytest that writes down what every passing test calls, in its own process, and how long it takes."""

    def __init__(self, root: Path, out: Path) -> None:
        self._root = str(root.resolve())
        self._out = out
        self._seen: Codes = set()
        self._generated: dict[CodeType, str] = {}
        self._fixtures: dict[int, tuple[Codes, float]] = {}
        self._calls: dict[str, float] = {}
        self._failed: set[str] = set()
        self._tests: dict[str, tuple[float, list[Place]]] = {}

    def pytest_sessionstart(self) -> None:
        threading.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        self._seen.add(frame.f_code)
        if frame.f_code.co_filename == "<string>":
            # What a dataclass generates stands nowhere, but knows the module of its class.
            self._generated[frame.f_code] = frame.f_globals.get("__file__") or ""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """What a shared fixture calls counts for each test that has it."""
        outer, self._seen, began = self._seen, set[CodeType](), time.monotonic()
        try:
            return (yield)
        finally:
            self._fixtures[id(fixturedef)] = (set(self._seen), time.monotonic() - began)
            self._seen |= outer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, object, object]:
        # What a test before this one set may have ended the record.
        sys.settrace(self._trace)
        self._seen = set()
        result = yield
        seen, seconds = set(self._seen), self._calls.get(item.nodeid, 0.0)
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            for fixture in fixtures:
                codes, more = self._fixtures.get(id(fixture), (set(), 0.0))
                seen |= codes
                seconds += more
        if item.nodeid in self._calls and item.nodeid not in self._failed:
            self._tests[item.nodeid] = (seconds, sorted(filter(None, map(self._place, seen))))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._calls[report.nodeid] = report.duration

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self._out.write_text(json.dumps(self._tests))

    def _place(self, code: CodeType) -> Place | None:
        file = self._generated.get(code, code.co_filename)
        if not file.startswith(self._root):
            return None
        name = file[len(self._root) + 1 :]
        # Two folders of the package are links to folders at the top.
        for linked in ("kvproxy/index/", "kvproxy/commands/"):
            if name.startswith(linked):
                name = name.removeprefix("kvproxy/")
        line = 0 if code in self._generated else code.co_firstlineno
        return None if name.startswith("tests/") else (name, line)


class Reached:
    """Tests by what they call, as a file tells that a `Recorder` wrote.

    Args:
        root: of the tree.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self._root = root
        self._seconds: dict[str, float] = {}
        self._breadth: dict[str, int] = {}
        self._tests: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        for test, (seconds, places) in json.loads(path.read_text()).items():
            self._seconds[test], self._breadth[test] = seconds, len(places)
            for file, line in places:
                self._tests[file].append((line, test))

    def __len__(self) -> int:
        return len(self._seconds)

    def tests_for(self, file: str, text: str, line: int, seconds: float) -> tuple[list[str], float]:
        """Tests that call the function around a line, the quick and narrow ones first, and how long they take in all.

        Those of a line outside of functions call any function of the file; where it has none, any of a file that imports it.

        Args:
            text: of the file.
            seconds: that they may take in all, unless the first takes longer.
        """
        first, last = _function(text, line)
        found = {test for begin, test in self._tests[file] if first <= begin <= last}
        if not found and not first:
            found = {test for user in self._users(file) for _, test in self._tests[user]}
        chosen, total = list[str](), 0.0
        for test in sorted(found, key=lambda test: ((self._seconds[test] + 0.005) * self._breadth[test], test)):
            if not chosen or total + self._seconds[test] <= seconds:
                chosen.append(test)
                total += self._seconds[test]
        return chosen, total

    def _users(self, file: str) -> list[str]:
        """The files with called functions that import a file."""
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".").removeprefix("kvproxy.")
        imports = re.compile(rf"^\s*(from|import) (kvproxy\.)?{re.escape(module)}\b", re.MULTILINE)
        folder, _, name = module.rpartition(".")
        named = re.compile(rf"^from (kvproxy\.)?{re.escape(folder)} import .*\b{re.escape(name)}\b", re.MULTILINE)
        texts = {each: (self._root / each).read_text() for each in self._tests if (self._root / each).exists()}
        return [each for each, text in texts.items() if imports.search(text) or (folder and named.search(text))]


def _function(text: str, line: int) -> tuple[int, int]:
    """The first and the last line of the innermost function around a line; the whole file's outside of functions."""
    spans = [(0, sys.maxsize)]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first <= line <= (node.end_lineno or first):
                spans.append((first, node.end_lineno or first))
    return max(spans)
