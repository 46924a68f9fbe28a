import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import run_tests, sample
from tests.mutants.changes import change, count_changes

TEXT = '''"""Text 1."""
def f(a: int = 3) -> bool:
    if a < 3 and not g(a, True):
        _log.info(1)
        raise ValueError(2)
    call()
    return a * 7
'''


def test_each_change_is_a_program_that_differs_in_one_place() -> None:
    original = ast.unparse(ast.parse(TEXT)).splitlines()
    changed = [
        [line.strip() for line, old in zip(change(TEXT, index).text.splitlines(), original, strict=True) if line != old]
        for index in range(count_changes(TEXT))
    ]
    assert sorted(changed) == sorted(
        [line]
        for line in (
            "def f(a: int=4) -> bool:",
            "if not (a < 3 and (not g(a, True))):",
            "if a < 3 or not g(a, True):",
            "if a <= 3 and (not g(a, True)):",
            "if a < 4 and (not g(a, True)):",
            "if a < 3 and g(a, True):",
            "if a < 3 and (not g(a, False)):",
            "pass",
            "return None",
            "return a // 7",
            "return a * 8",
        )
    )


def test_the_same_seed_gives_the_same_sample() -> None:
    paths = ["kvproxy/blocks/pins.py", "kvproxy/blocks/eviction"]
    assert sample(paths, 2, 1) == sample(paths, 2, 1) != sample(paths, 2, 2)


def test_a_failing_test_kills_and_an_endless_one_runs_out_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Loading the plugins takes most of the time of such short tests.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "test_it.py").write_text("def test_passes(): pass\ndef test_fails(): assert False\n")
    assert run_tests(tmp_path, ["test_it.py::test_passes"]) == "survived"
    assert run_tests(tmp_path, ["test_it.py"]) == "killed"
    assert run_tests(tmp_path, ["test_it.py"], timeout=0.1) == "timeout"
