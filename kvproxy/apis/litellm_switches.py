"""LiteLLM's cache switches, in the field `cache` of the body: https://docs.litellm.ai/docs/proxy/caching."""

from dataclasses import replace
from typing import Any

from kvproxy.apis.json import Json, JsonObject
from kvproxy.apis.request_directives import RequestDirectives, check_namespace
from kvproxy.errors import InvalidRequest
from kvproxy.units import parse_seconds

CACHE_FIELD = "cache"
_FLAGS = {"no-cache": ("no_cache",), "no-store": ("no_store",), "use-cache": ("no_cache", "no_store")}
_DURATIONS = {"ttl": "ttl", "s-maxage": "max_age", "s-max-age": "max_age"}
_SWITCHES = (*_FLAGS, *_DURATIONS, "namespace")


def apply_litellm_switches(body: JsonObject, control: RequestDirectives) -> tuple[JsonObject, RequestDirectives]:
    """Move LiteLLM's switches from the field `cache` of the body to `control`. Directives in headers take precedence."""
    given = body.get(CACHE_FIELD)
    if not isinstance(given, dict):
        return body, control
    found: dict[str, Any] = {}
    for name, value in given.items():
        found |= _read_switch(name, value)
    for name in ("max_age", "ttl", "namespace"):
        if getattr(control, name) not in (None, ""):
            found.pop(name, None)
    kept = {name: value for name, value in found.items() if value is not False}
    return {name: value for name, value in body.items() if name != CACHE_FIELD}, replace(control, **kept)


def _read_switch(name: str, value: Json) -> dict[str, Any]:
    if name in _FLAGS and isinstance(value, bool):
        return dict.fromkeys(_FLAGS[name], value != (name == "use-cache"))
    if name in _DURATIONS:
        try:
            if (seconds := parse_seconds(value)) >= 0:
                return {_DURATIONS[name]: seconds}
        except ValueError as error:
            raise InvalidRequest(f"{CACHE_FIELD}.{name}: {error}", param=CACHE_FIELD) from None
    if name == "namespace" and isinstance(value, str):
        return {name: check_namespace(value, CACHE_FIELD)}
    if name not in _SWITCHES:
        raise InvalidRequest(f"unknown switch {name[:40]!r} in cache: use {', '.join(_SWITCHES)}", param=CACHE_FIELD)
    form = "true or false" if name in _FLAGS else "at least 0" if name in _DURATIONS else "a text"
    raise InvalidRequest(f"{CACHE_FIELD}.{name} must be {form}", param=CACHE_FIELD)
