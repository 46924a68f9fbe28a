"""Names: classes are unique in the product, and vague names that were replaced do not come back."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.structure.test_imports import ROOT, parsed, sources

# Each word stands for a standard term: `told` for engine reports, `Ruled` for a request rule, `spare` for a stale entry.
VAGUE_CLASSES = set(
    """
    Again Asked Behind Comer Coming Draft Flight Gone Held Hit Kept Late OnTheWay Owned Recall Remembered Room Ruled Said Saved
    Shelf Speaker Story Taker Told Wanted
    """.split()
)
VAGUE_NAMES = set(
    """
    behind boarding comer coming doubts drawing heard in_stead once_more on_the_way patience remembered ruled shelf spare speaker
    story taker told trail
    """.split()
)


@cache
def classes() -> dict[str, list[str]]:
    """Return the files that define a class, by its name."""
    found = defaultdict(list)
    for path in sources():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def names(path: Path) -> Iterator[str]:
    """Yield the names of a file and of its functions, arguments, variables, and attributes."""
    yield path.stem
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_class_names_are_unique() -> None:
    assert {name: paths for name, paths in classes().items() if len(paths) > 1} == {}


def test_vague_names_do_not_come_back() -> None:
    assert {name: paths for name, paths in classes().items() if name.strip("_") in VAGUE_CLASSES} == {}
    found = {
        str(path.relative_to(ROOT)): {name for name in names(path) if name.strip("_") in VAGUE_NAMES}
        for path in sources()
    }
    assert {path: vague for path, vague in found.items() if vague} == {}
