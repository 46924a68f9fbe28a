"""Reads JSON values that logs contain as texts."""

from kvproxy.apis.json import Json, JsonObject, loads


def decoded(value: Json) -> Json:
    """Return the JSON value that a string contains, or else the value itself."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return loads(value.encode())
        except ValueError:
            return value
    return value


def decoded_object(value: Json) -> JsonObject | None:
    document = decoded(value)
    return document if isinstance(document, dict) else None
