"""Reads settings from environment variables."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from kvproxy.errors import SettingsError
from kvproxy.settings.errors import PREFIX

_DELIMITER = "__"
_FILE = "_FILE"
_STRUCTURES = (BaseModel, Mapping, tuple, list, set, frozenset)


def override_by_environment(values: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Set values by variables such as `KVPROXY_PORT`, `KVPROXY_CACHE__TTL`, and `KVPROXY_UPSTREAMS__0__API_KEY`.

    Return the values, nested by section. A section, a table, or a list is JSON; the variable of a part overrides it. Items of a
    list have numbers from 0; the next number adds an item. The case of names does not matter. An empty variable counts as unset:
    `KVPROXY_ADMIN_TOKEN=$UNSET` in a script must not set an empty token. Variables that begin with no name of the model are
    omitted. `KVPROXY_ADMIN_TOKEN_FILE` names a file with the value, as do the variables of all settings that are no structures.
    Raises SettingsError for a variable without the JSON that its setting requires, or without an item of its number, and for a
    file that cannot be read.
    """
    given = {name.upper(): text for name, text in os.environ.items() if text and name.upper().startswith(PREFIX)}
    given = _read_files(given, model)
    for variable in sorted(given, key=_order):
        *sections, name = variable[len(PREFIX) :].lower().split(_DELIMITER)
        if [*sections, name][0] not in model.model_fields:
            continue
        kind: Any = model
        container: Any = values
        for section in sections:
            kind = _type_of(kind, section)
            container = _open(container, section, variable, kind)
        # A section that is no table is an error of its own.
        value = _parsed(variable, given[variable], _type_of(kind, name))
        if isinstance(container, dict):
            container |= merged(container, {name: value})
        elif isinstance(container, list):
            container[_index(container, name, variable)] = value
    return values


def _read_files(given: Mapping[str, str], model: type[BaseModel]) -> dict[str, str]:
    """Return variables with the contents of the files that variables such as `KVPROXY_ADMIN_TOKEN_FILE` name."""
    values = dict(given)
    for variable, path in given.items():
        name = variable.removesuffix(_FILE)
        kind = None if _kind_of(variable, model) is not None else _kind_of(name, model)
        if name == variable or kind is None or _is_structured(kind):
            continue
        if name in given:
            raise SettingsError(f"{name} and {variable} are both set: unset one of them")
        del values[variable]
        values[name] = _read_file(variable, path)
    return values


def _kind_of(variable: str, model: type[BaseModel]) -> Any:
    """Return the type of the setting of a variable; None if there is no such setting."""
    kind: Any = model
    for name in variable.removeprefix(PREFIX).lower().split(_DELIMITER):
        kind = _type_of(kind, name)
    return kind


def _read_file(variable: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"{variable}: cannot read {path} ({cause})") from None
    if not text:
        raise SettingsError(f"{variable}: the file {path} is empty")
    return text


def merged(values: dict[str, Any], overriding: dict[str, Any]) -> dict[str, Any]:
    """Return the values of both, merged section by section."""
    result = dict(values)
    for name, value in overriding.items():
        given = result.get(name)
        result[name] = merged(given, value) if isinstance(given, dict) and isinstance(value, dict) else value
    return result


def _order(variable: str) -> tuple[int, list[str]]:
    """Sort sections before their settings, and items by number."""
    parts = variable.split(_DELIMITER)
    return len(parts), [part.zfill(9) for part in parts]


def _open(container: Any, name: str, variable: str, kind: Any) -> Any:
    """Return a section, table, list, or item of a container. Create it if it is missing."""
    if isinstance(container, list):
        index = _index(container, name, variable)
        if isinstance(container[index], str):
            # An upstream may be only its URL.
            container[index] = {"url": container[index]}
        return container[index]
    if not isinstance(container, dict):
        return None
    if name not in container or not _is_structured(kind):
        container[name] = [] if _is_list(kind) else {}
    return container[name]


def _index(items: list[Any], name: str, variable: str) -> int:
    """Return the index of an item, which is added if it is the next one."""
    if not (name.isdecimal() and int(name) <= len(items)):
        raise SettingsError(
            f"{variable}: {name} is not the number of an item: the next item has the number {len(items)}"
        )
    if int(name) == len(items):
        items.append({})
    return int(name)


def _is_list(kind: Any) -> bool:
    origin = get_origin(kind)
    return origin in (tuple, list) or (origin is not dict and any(map(_is_list, get_args(kind))))


def _type_of(kind: Any, name: str) -> Any:
    """Return the type of a field in a section, or of a value in a table; None if the type has no such field."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(name)
        return None if field is None else field.annotation
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    if get_origin(kind) in (tuple, list) and name.isdecimal():
        return get_args(kind)[0]
    return next(filter(None, (_type_of(inner, name) for inner in get_args(kind))), None)


def _parsed(variable: str, text: str, kind: Any) -> Any:
    if not _is_structured(kind):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{variable} must contain JSON ({error})") from None


def _is_structured(kind: Any) -> bool:
    """Return whether values of the type are sections, tables, or lists, or may be."""
    origin = get_origin(kind) or kind
    is_structure = isinstance(origin, type) and issubclass(origin, _STRUCTURES)
    return is_structure or any(map(_is_structured, get_args(kind)))
