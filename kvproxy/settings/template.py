"""Writes kvproxy.toml with all settings as comments: description and default."""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kvproxy.settings.access import ClientSettings
from kvproxy.settings.rules import RuleSettings
from kvproxy.settings.tree import Settings
from kvproxy.units import format_bytes, format_seconds, parse_bytes, parse_seconds

_TABLES: dict[str, type[BaseModel]] = {"clients": ClientSettings, "rules": RuleSettings}
_WIDTH = 110
# A link of Markdown to a page of the docs, which a TOML comment does not render.
_LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")


def template() -> str:
    lines = ["# Settings of kvproxy. Uncomment a line to change a setting; see docs/configuration.md."]
    sections = []
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            sections.append((name, kind))
        elif name not in _TABLES:
            lines += _setting(name, field)
    for name, kind in sections:
        lines += ["", *_comment(kind.__doc__ or ""), f"[{name}]"]
        for inner, field in kind.model_fields.items():
            lines += _setting(inner, field)
    for name, kind in _TABLES.items():
        lines += ["", *_comment(Settings.model_fields[name].description or ""), f"# [[{name}]]"]
        for inner, field in kind.model_fields.items():
            lines += _setting(inner, field)
    return "\n".join(lines) + "\n"


def _setting(name: str, field: FieldInfo) -> Iterator[str]:
    yield ""
    yield from _comment(field.description or "")
    default = default_value(field)
    yield f"#{name} =" if default is None else f"#{name} = {_to_toml(default)}"


def default_value(field: FieldInfo) -> object:
    """Return the default of a setting, as text with a unit if it is a duration or a size."""
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    kind = f"{field.annotation} {field.metadata}"
    if isinstance(value, int | float) and parse_seconds.__name__ in kind:
        return format_seconds(value)
    return format_bytes(value) if isinstance(value, int | float) and parse_bytes.__name__ in kind else value


def _comment(text: str) -> Iterator[str]:
    text = _LINK.sub(r"\1 (docs/\2)", " ".join(text.split()))
    for line in textwrap.wrap(text, _WIDTH, break_on_hyphens=False):
        yield f"# {line}"


def _to_toml(value: object) -> str:
    if isinstance(value, Path):
        return json.dumps(str(value))
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{name} = {_to_toml(inner)}" for name, inner in value.items()) + " }" if value else "{}"
        )
    if isinstance(value, tuple | list | set | frozenset):
        return f"[{', '.join(map(_to_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
