"""The value of each setting, and where it comes from."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from kvproxy.settings.errors import SettingPath, find_variable, line_numbers, variable_name
from kvproxy.settings.tree import Settings, config_file

_SECRET = "(set)"


@dataclass(frozen=True, slots=True)
class SettingSource:
    """A setting, its value without secrets, and its source: `default`, a variable, or a line of kvproxy.toml."""

    name: str
    value: Any
    source: str


def setting_sources(settings: Settings, data: Path | None) -> list[SettingSource]:
    """Return all settings in the order of docs/configuration.md. `data` is the folder that a flag gave."""
    file = config_file(data)
    numbers = line_numbers(file.read_text()) if file.is_file() else {}

    def source(path: SettingPath) -> str:
        if path == ("data",) and data is not None:
            return "--data"
        variable = find_variable(path)
        # A table of tables has the lines of its tables.
        lines = [line for place, line in numbers.items() if place[: len(path)] == path]
        line = [f"{file}, line {min(lines)}"] if lines else []
        if variable is not None:
            # The variable of a part does not replace the rest.
            return ", ".join([*(line if variable.startswith(f"{variable_name(path)}__") else []), variable])
        if line:
            return line[0]
        # A single upstream becomes the only one of the list.
        return source(("upstream",)) if path == ("upstreams",) and settings.upstream else "default"

    return [SettingSource(".".join(path), value, source(path)) for path, value in _leaves(settings)]


def _leaves(section: BaseModel, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), _SECRET if not field.repr and value else _without_secrets(value)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        set_values = {name: getattr(value, name) for name in fields if name in value.model_fields_set}
        return {
            name: _SECRET if not fields[name].repr and inner else _without_secrets(inner)
            for name, inner in set_values.items()
        }
    if isinstance(value, tuple | list | frozenset | set):
        return [_without_secrets(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _without_secrets(inner) for name, inner in value.items()}
    if isinstance(value, SecretStr):
        return _SECRET
    return value if isinstance(value, str | int | float | bool | None) else str(value)
