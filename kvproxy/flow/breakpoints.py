"""Places Anthropic's breakpoints (`cache_control`). The provider caches the prefix that ends at a breakpoint.

A prefix consists of tools, system prompt, and messages, in this order. A request may have four breakpoints, not on every type
of block. Short prefixes are not cached. The provider finds a cached prefix only if it ends in the 20 blocks before a
breakpoint, so the end of the previous request gets one, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from kvproxy.apis.api_request import BYTES_PER_TOKEN, ApiRequest
from kvproxy.apis.json import Json, JsonObject, dumps, field, objects
from kvproxy.apis.message_parts import REASONING_BLOCKS
from kvproxy.flow.conversation_digests import MARKER, content_blocks

Lifetime = Literal["5m", "1h"]
_MAX_BREAKPOINTS = 4
_EVERY_MESSAGE = 2**31
_SECTIONS = ("tools", "system", "messages")
_MINIMUMS = (
    *((pattern, 4_096) for pattern in ("*opus-4-[567]*", "*haiku-4-5*")),
    *((pattern, 2_048) for pattern in ("*haiku-3*", "*3-haiku*", "*3-5-haiku*")),
    ("*", 1_024),
)
"""Minimum tokens of a cached prefix, by model."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A block that may have a breakpoint.

    Attributes:
        section: `tools`, `system`, or `messages`.
        item: index of the tool, system block, or message.
        part: index of the content block in the message; 0 otherwise.
        end: length of the prefix that ends with the block, in bytes.
        is_marked: the client set a breakpoint.
    """

    section: str
    item: int
    part: int
    end: int
    is_marked: bool


def with_breakpoints(request: ApiRequest, last_hour_message: int = -1) -> ApiRequest:
    """Place breakpoints as the request's rule requires.

    With `breakpoints = "auto"`, the prefix up to the message `last_hour_message` gets a lifetime of one hour.
    """
    lifetime = request.control.rule.breakpoints
    if lifetime is None or request.api.name != "messages" or not _is_well_formed(request.body):
        return request
    places = list(_places(request.body))
    minimum = next(tokens for pattern, tokens in _MINIMUMS if fnmatchcase(request.model, pattern))
    chosen = _chosen(request.body, places, minimum * BYTES_PER_TOKEN, last_hour_message)
    if lifetime != "auto":
        last_hour_message = _EVERY_MESSAGE if lifetime == "1h" else -1
    body = _marked(request.body, chosen, last_hour_message)
    if body == request.body:
        return request
    # For listings, the journal, and savings.
    sections = [place.section for place in places if place in chosen]
    counts = [f"{sections.count(name)} {name}" for name in _SECTIONS if name in sections]
    long = sum(_block_lifetime(place.section, place.item, last_hour_message) == "1h" for place in chosen)
    counts += [f"{long} for 1h"] if long else []
    tags = (*request.control.tags, f"breakpoints:{' + '.join(counts) or 'none'}")
    return replace(request, body=body, raw=dumps(body), control=replace(request.control, tags=tags))


def _is_well_formed(body: JsonObject) -> bool:
    lists = [body.get(name) for name in _SECTIONS]
    lists += [message.get("content") for message in objects(body.get("messages"))]
    return all(len(objects(value)) == len(value) for value in lists if isinstance(value, list))


def _places(body: JsonObject) -> Iterator[_Place]:
    end = 0
    for section in _SECTIONS:
        for item, holder in enumerate(content_blocks(body.get(section))):
            parts = content_blocks(holder.get("content")) if section == "messages" else [holder]
            for part, block in enumerate(parts):
                end += len(dumps(block))
                if _is_markable(block):
                    yield _Place(section, item, part, end, MARKER in block)


def _is_markable(block: JsonObject) -> bool:
    if block.get("type") in REASONING_BLOCKS or block.get("defer_loading") is True:
        return False
    return block.get("type") != "text" or bool(str(block.get("text", "")).strip())


def _chosen(body: JsonObject, places: list[_Place], minimum: int, last_hour_message: int) -> set[_Place]:
    answers = [item for item, message in enumerate(objects(body.get("messages"))) if message.get("role") == "assistant"]
    messages, system, tools = ([place for place in places if place.section == name] for name in _SECTIONS[::-1])
    wanted = [
        *messages[-1:],
        *[place for place in messages if place.item <= last_hour_message][-1:],
        *[place for place in messages if answers and place.item < answers[-1]][-1:],
        *[place for place in reversed(places) if place.is_marked],
        *system[-1:],
        *tools[-1:],
    ]
    # A breakpoint for the whole body is one of the four.
    most = _MAX_BREAKPOINTS - 1 if isinstance(body.get(MARKER), dict) else _MAX_BREAKPOINTS
    long_enough = dict.fromkeys(place for place in wanted if place.end >= minimum)
    return set(list(long_enough)[:most])


def _block_lifetime(section: str, item: int, last_hour_message: int) -> Lifetime:
    return "1h" if last_hour_message >= (item if section == "messages" else 0) else "5m"


def _marked(body: JsonObject, chosen: set[_Place], last_hour_message: int) -> JsonObject:
    at = {(place.section, place.item, place.part) for place in chosen}
    marked = dict(body)
    if isinstance(body.get(MARKER), dict):
        marked[MARKER] = _marker(
            body, _block_lifetime("messages", len(objects(body.get("messages"))) - 1, last_hour_message)
        )
    for section in ("tools", "system"):
        if section in body:
            parts = {item for name, item, _ in at if name == section}
            marked[section] = _marked_blocks(body[section], parts, _block_lifetime(section, 0, last_hour_message))
    messages: list[Json] = []
    for item, message in enumerate(objects(body.get("messages"))):
        parts = {part for name, number, part in at if (name, number) == ("messages", item)}
        lifetime = _block_lifetime("messages", item, last_hour_message)
        messages.append({**message, "content": _marked_blocks(message.get("content"), parts, lifetime)})
    return {**marked, "messages": messages}


def _marked_blocks(content: Json, parts: set[int], lifetime: Lifetime) -> Json:
    if isinstance(content, str) and not parts:
        return content
    marked: list[Json] = []
    for part, block in enumerate(content_blocks(content)):
        plain = {name: value for name, value in block.items() if name != MARKER}
        if isinstance(plain.get("content"), list):
            plain["content"] = _marked_blocks(plain["content"], set(), lifetime)
        marked.append({**plain, MARKER: _marker(block, lifetime)} if part in parts else plain)
    return marked


def _marker(holder: JsonObject, lifetime: Lifetime) -> Json:
    marker = holder.get(MARKER)
    if isinstance(marker, dict) and (marker.get("ttl") or "5m") == lifetime:
        return marker
    return {"type": "ephemeral"} if lifetime == "5m" else {"type": "ephemeral", "ttl": lifetime}


def find_last_hour_message(body: JsonObject) -> int:
    """Return the index of the last message with a breakpoint for one hour; -1 without one."""
    for item, message in reversed(list(enumerate(objects(body.get("messages"))))):
        markers = [field(block, MARKER) for block in objects(message.get("content"))]
        if any(field(marker, "ttl") == "1h" for marker in markers):
            return item
    return -1
