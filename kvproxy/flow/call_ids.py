"""Replaces random tool call ids by numbers in cache keys, so that equal conversations have equal keys."""

from collections.abc import Iterator

from kvproxy.apis.json import Json, JsonObject

_REFERENCES = ("tool_call_id", "tool_use_id", "call_id")
_CALL_TYPES = ("function", "custom", "tool_use", "server_tool_use", "function_call", "custom_tool_call")
_LISTS = ("messages", "input")


def number_call_ids(body: JsonObject) -> JsonObject:
    """Replace tool call ids by numbers in order of first use. Change nothing if another text of the body contains an id."""
    lists = {name: body[name] for name in _LISTS if isinstance(body.get(name), list)}
    ids = list(dict.fromkeys(_find_call_ids(list(lists.values()))))
    if not ids:
        return body
    # Nine letters and digits: some servers accept no other form, and `kvproxy warm` sends stored requests again.
    numbers = {id: f"call{number:05d}" for number, id in enumerate(ids)}
    found: JsonObject = {name: _replace_ids(value, numbers) for name, value in lists.items()}
    if any(id in text for text in _strings([*found.values()]) for id in ids):
        return body
    return {**body, **found}


def _find_call_ids(value: Json) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _find_call_ids(item)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if _is_call_id(value, name):
                yield str(inner)
            elif isinstance(inner, list | dict):
                yield from _find_call_ids(inner)


def _is_call_id(holder: JsonObject, name: str) -> bool:
    return isinstance(holder[name], str) and (
        name in _REFERENCES or (name == "id" and holder.get("type") in _CALL_TYPES)
    )


def _replace_ids(value: Json, numbers: dict[str, str]) -> Json:
    if isinstance(value, list):
        return [_replace_ids(item, numbers) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: numbers[str(inner)] if _is_call_id(value, name) else _replace_ids(inner, numbers)
        for name, inner in value.items()
    }


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from value
        yield from _strings(list(value.values()))
