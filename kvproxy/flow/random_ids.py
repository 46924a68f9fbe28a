"""Removes ids that clients and providers draw at random, so that equal conversations have equal cache keys."""

import os.path
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from kvproxy.apis.json import Json, JsonObject, contains_any
from kvproxy.apis.key_fields import CALL_IDS, reads_item_id

_CALL_REFERENCES = ("tool_call_id", "tool_use_id", "call_id", "approval_request_id", "caller_id")
_CALL_TYPES = ("function", "custom", "tool_use", "server_tool_use", "mcp_tool_use", *CALL_IDS)
_OUTPUTS = ("_output", "_result")
_MESSAGE_LISTS = ("messages", "input")
_ID_WORDS = (b'"id"', b"_id")
_PREFIX = 4


def may_have_random_ids(raw: bytes) -> bool:
    """Whether a body without escape sequences may contain random ids."""
    return contains_any(raw, _ID_WORDS)


def without_random_ids(body: JsonObject) -> JsonObject:
    """Replace ids of tool calls by numbers, and drop ids of input items that nothing refers to.

    Ids stay if the provider may read content that is stored under them (see `key_fields`), or if they refer to a call in the
    previous response. Return the body unchanged if one of its other texts contains an id.
    """
    lists = {name: body[name] for name in _MESSAGE_LISTS if isinstance(body.get(name), list)}
    items = {id(item) for item in _objects(lists.get("input"))}
    uses: Counter[str] = Counter()
    random: set[str] = set()
    is_whole = body.get("previous_response_id") is None
    for holder, name, text in _ids([*lists.values()], items):
        uses[text] += 1
        if is_whole or _declares(holder, name):
            random.add(text)
    if not random:
        return body
    numbers: dict[str, str] = {}

    def replaced(value: Json) -> Json:
        if isinstance(value, list):
            return [replaced(item) for item in value]
        if not isinstance(value, dict):
            return value
        result: JsonObject = {}
        for name, inner in value.items():
            if not _is_id(value, name, items) or inner not in random:
                result[name] = replaced(inner)
            elif name != "id" or id(value) not in items or uses[str(inner)] > 1:
                # Nine letters and digits: some servers accept no other form, and `kvproxy warm` sends stored requests again.
                result[name] = numbers.setdefault(str(inner), f"call{len(numbers):05d}")
        return result

    replaced_lists = {name: replaced(value) for name, value in lists.items()}
    return body if _is_mentioned(random, list(_strings([*replaced_lists.values()]))) else {**body, **replaced_lists}


def _objects(value: Json) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _ids(value: Json, items: set[int]) -> Iterator[tuple[JsonObject, str, str]]:
    if isinstance(value, list):
        for item in value:
            yield from _ids(item, items)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if _is_id(value, name, items):
                yield value, name, str(inner)
            else:
                yield from _ids(inner, items)


def _is_id(holder: JsonObject, name: str, items: set[int]) -> bool:
    if not isinstance(holder[name], str) or not holder[name]:
        return False
    if name in _CALL_REFERENCES:
        return True
    return name == "id" and (holder.get("type") in _CALL_TYPES or (id(holder) in items and not reads_item_id(holder)))


def _declares(holder: JsonObject, name: str) -> bool:
    if name == "id":
        return holder.get("type") != "local_shell_call_output"
    kind = str(holder.get("type", ""))
    return name == "call_id" and not kind.endswith(_OUTPUTS)


def _is_mentioned(ids: Iterable[str], texts: Sequence[str]) -> bool:
    # Most ids have a common beginning, such as `msg_`, that occurs in no text.
    groups: dict[str, list[str]] = defaultdict(list)
    for id in ids:
        groups[id[:_PREFIX]].append(id)
    for group in groups.values():
        beginning = os.path.commonprefix(group)  # noqa: RUF071 - it compares characters, as required here.
        candidates = [text for text in texts if beginning in text]
        if any(id in text for text in candidates for id in group):
            return True
    return False


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from value
        yield from _strings(list(value.values()))
