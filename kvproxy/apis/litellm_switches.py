"""LiteLLM's switches of a request, in the field `cache` of its body: https://docs.litellm.ai/docs/proxy/caching."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvproxy.apis.json import Json, JsonObject
from kvproxy.apis.request_directives import Control, check_namespace
from kvproxy.errors import InvalidRequest
from kvproxy.units import parse_seconds

FIELD = "cache"


def apply_switches(body: JsonObject, control: Control) -> tuple[JsonObject, Control]:
    """Return the body without its switches, and the directives with the switches added. Headers take precedence."""
    given = body.get(FIELD)
    if not isinstance(given, dict):
        return body, control
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _SWITCHES:
            raise InvalidRequest(f"unknown switch {name[:40]!r} in cache: use {', '.join(_SWITCHES)}", param=FIELD)
        found |= _SWITCHES[name](f"{FIELD}.{name}", value)
    for name in ("max_age", "ttl"):
        if getattr(control, name) is not None:
            found.pop(name, None)
    if control.namespace:
        found.pop("namespace", None)
    kept = {name: value for name, value in found.items() if value is not False}
    return {name: value for name, value in body.items() if name != FIELD}, replace(control, **kept)


def _flag(*fields: str, inverted: bool = False) -> Callable[[str, Json], dict[str, Any]]:
    def read(name: str, value: Json) -> dict[str, Any]:
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} must be true or false", param=FIELD)
        return dict.fromkeys(fields, value != inverted)

    return read


def _duration(field: str) -> Callable[[str, Json], dict[str, Any]]:
    def read(name: str, value: Json) -> dict[str, Any]:
        try:
            seconds = parse_seconds(value)
        except ValueError as error:
            raise InvalidRequest(f"{name}: {error}", param=FIELD) from None
        if seconds < 0:
            raise InvalidRequest(f"{name} must be at least 0", param=FIELD)
        return {field: seconds}

    return read


def _namespace(name: str, value: Json) -> dict[str, Any]:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a text", param=FIELD)
    return {"namespace": check_namespace(value, FIELD)}


_SWITCHES: dict[str, Callable[[str, Json], dict[str, Any]]] = {
    "no-cache": _flag("no_cache"),
    "no-store": _flag("no_store"),
    "use-cache": _flag("no_cache", "no_store", inverted=True),
    "ttl": _duration("ttl"),
    "s-maxage": _duration("max_age"),
    "s-max-age": _duration("max_age"),
    "namespace": _namespace,
}
