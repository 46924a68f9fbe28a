"""Settings for type checkers without the plugin of pydantic."""

import ast
from pathlib import Path

import kvproxy.settings


def test_every_default_is_named_so_that_type_checkers_see_it() -> None:
    """To a type checker, a field with `Field(5)` is required, and one with `Field(default=5)` is not."""
    unnamed = [
        f"{path.name}:{node.lineno}"
        for path in Path(kvproxy.settings.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field" and node.args
    ]
    assert not unnamed
