"""Each change that a mutant makes is a program that differs in one place."""

import ast

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
