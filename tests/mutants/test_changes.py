"""The tool that changes code: what it changes, and what it leaves alone."""

import ast
from pathlib import Path

import pytest

from tests.mutants import runs
from tests.mutants.__main__ import sample
from tests.mutants.changes import changes
from tests.mutants.reached import Reached, Recorder
from tests.mutants.runs import ROOT, run

TEXT = '''"""Text 1."""
import x
def f(é: int = 3) -> bool:
    if é < 3 and not g(é, True):
        _log.info(1)
        raise ValueError(2)
    a = "ü" + "b"; b = é * 7
    call()
    return b >= 2
'''


def test_each_change_is_a_program_that_differs_in_one_place() -> None:
    made = [change.apply(TEXT) for change in changes(TEXT)]
    assert len(made) == len(set(made))
    for text in made:
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(TEXT))
        assert sum(one != other for one, other in zip(text.splitlines(), TEXT.splitlines(), strict=True)) == 1
    new = {change.told(TEXT).split("  ->  ")[1] for change in changes(TEXT)}
    assert new == {
        "def f(é: int = 4) -> bool:",
        "if (not (é < 3 and (not g(é, True)))):",
        "if é < 3 or not g(é, True):",
        "if é <= 3 and not g(é, True):",
        "if é < 4 and not g(é, True):",
        "if é < 3 and (g(é, True)):",
        "if é < 3 and not g(é, False):",
        'a = "ü" + "b"; b = é // 7',
        'a = "ü" + "b"; b = é * 8',
        "pass",
        "return None",
        "return b > 2",
        "return b >= 3",
    }


def test_every_module_can_be_changed_and_stays_a_program() -> None:
    for file in sorted((ROOT / "kvproxy/blocks").rglob("*.py")):
        text = file.read_text()
        for change in changes(text)[::7]:
            ast.parse(change.apply(text))


def test_the_same_seed_gives_the_same_sample() -> None:
    paths = ["kvproxy/blocks/pins.py", "index/policies/guards"]
    assert sample(paths, 3, 1) == sample(paths, 3, 1) != sample(paths, 3, 2)


def test_a_failing_test_kills_and_an_endless_one_runs_out_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_PATIENCE", 2.0)
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert True\n")
    assert run(tmp_path, ["test_it.py"], 20).fate == "survived"
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert not True\n")
    failed = run(tmp_path, ["test_it.py"], 20)
    assert (failed.fate, failed.by) == ("killed", "test_it.py::test_it")
    (tmp_path / "test_it.py").write_text("def test_it():\n    while True: pass\n")
    assert run(tmp_path, ["test_it.py"], 0).fate == "time"


CONSTANTS = "TWO = 2\n"
CALLED = """from dataclasses import dataclass
from constants import TWO

@dataclass(frozen=True, slots=True)
class Pair:
    left: int = 1

def one():
    return 1

def other():
    def inner():
        return TWO
    return inner()
"""
CALLING = """import pytest
from called import Pair, one, other

@pytest.fixture(scope="module")
def two(): return other()

def test_one(): assert one() == 1
def test_two(two): assert two == 2
def test_two_again(two): assert two == 2
def test_pair(): assert Pair().left == 1
def test_fails(two): assert one() == 2
"""


def test_a_change_is_put_to_the_tests_that_call_its_function(tmp_path: Path) -> None:
    (tmp_path / "constants.py").write_text(CONSTANTS)
    (tmp_path / "called.py").write_text(CALLED)
    (tmp_path / "test_it.py").write_text(CALLING)
    out = tmp_path / "reached.json"
    run(tmp_path, ["test_it.py"], 60, recorder=Recorder(tmp_path, out))
    reached = Reached(out, tmp_path)
    assert len(reached) == 4
    found = [set(reached.tests_for("called.py", CALLED, line, 60)[0]) for line in (9, 13, 6)]
    one, two = {"test_it.py::test_one"}, {"test_it.py::test_two", "test_it.py::test_two_again"}
    every = {*one, *two, "test_it.py::test_pair"}
    assert found == [one, two, every]
    assert len(reached.tests_for("called.py", CALLED, 6, 0)[0]) == 1
    # A file without functions: the tests of those that import it.
    assert set(reached.tests_for("constants.py", CONSTANTS, 1, 60)[0]) == every
