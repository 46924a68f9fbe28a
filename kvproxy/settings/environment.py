"""Reads settings from environment variables."""

import json
import os
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from kvproxy.errors import SettingsError
from kvproxy.settings.errors import PREFIX

_DELIMITER = "__"
_STRUCTURES = (BaseModel, Mapping, tuple, list, set, frozenset)


def read_environment(model: type[BaseModel]) -> dict[str, Any]:
    """Return the values of variables such as `KVPROXY_PORT` and `KVPROXY_CACHE__TTL`, nested by section.

    A section, a table, or a list is JSON; the variable of a setting overrides its section. The case of names does not
    matter. An empty variable counts as unset: `KVPROXY_ADMIN_TOKEN=$UNSET` in a script must not set an empty token. Variables
    that begin with no name of the model are omitted. Raises SettingsError for a variable without the JSON that its setting
    requires.
    """
    given = {name: text for name, text in os.environ.items() if text and name.upper().startswith(PREFIX)}
    values: dict[str, Any] = {}
    for variable in sorted(given, key=lambda name: (name.count(_DELIMITER), name)):
        *sections, name = variable[len(PREFIX) :].lower().split(_DELIMITER)
        if [*sections, name][0] not in model.model_fields:
            continue
        kind: Any = model
        table: Any = values
        for section in sections:
            kind = _type_of(kind, section)
            table = table.setdefault(section, {}) if isinstance(table, dict) else None
        # A section that is no JSON object is an error of its own variable.
        if isinstance(table, dict):
            table[name] = _parsed(variable, given[variable], _type_of(kind, name))
    return values


def _type_of(kind: Any, name: str) -> Any:
    """Return the type of a field in a section, or of a value in a table; None if the type has no such field."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(name)
        return None if field is None else field.annotation
    if get_origin(kind) is dict:
        return get_args(kind)[1]
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
