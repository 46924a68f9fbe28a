"""Each reason that the code can record has a meaning, and can be searched."""

import ast
import importlib
from pathlib import Path

import pytest

import kvproxy.index
from kvproxy.index.policies import guards
from kvproxy.journal.reasons import check_reason_prefix, meaning_of_reason, reasons


def _names_of_vetoes() -> set[str]:
    """The constant names in calls with `"vetoed"`; other names are those of a `Guard`."""
    names: set[str] = set()
    root = Path(kvproxy.index.__file__).resolve().parent
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if '"vetoed"' not in text:
            continue
        module = ".".join(("kvproxy", "index", *path.relative_to(root).with_suffix("").parts))
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            if not any(isinstance(value, ast.Constant) and value.value == "vetoed" for value in values):
                continue
            for value in values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value != "vetoed":
                    names.add(value.value)
                elif isinstance(value, ast.Name) and value.id.isupper():
                    names.add(getattr(importlib.import_module(module), value.id))
    return names


def test_every_veto_of_the_code_has_a_difference() -> None:
    found = _names_of_vetoes()
    assert {"context", "words", "language"} <= found
    assert found <= guards.DIFFERENCES.keys()


@pytest.mark.parametrize("name", guards.DIFFERENCES)
def test_every_veto_can_be_searched_and_is_no_plugins(name: str) -> None:
    token = f"veto-{name}"
    assert token in reasons()
    check_reason_prefix(token)
    assert "plugin" not in meaning_of_reason(token)
