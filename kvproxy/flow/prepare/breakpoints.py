"""Sets the cache breakpoints of providers on content blocks: Anthropic's `cache_control`; see `openai_breakpoints.py`.

Anthropic caches the prefix that ends at a breakpoint: tools, system prompt, and messages, in this order. Blocks of some types
accept no breakpoint. Anthropic does not cache short prefixes, and searches for a cached prefix only a few blocks before a
breakpoint, so the last block of the previous request gets a breakpoint, too. `providers/cache_rules.py` has the limits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kvproxy.apis.api_request import BREAKPOINTS_TAG, BYTES_PER_TOKEN, ApiRequest
from kvproxy.apis.json import Json, JsonObject, dumps, field, objects
from kvproxy.apis.message_parts import REASONING_BLOCKS
from kvproxy.flow.conversation_digests import BREAKPOINT_FIELD, content_blocks
from kvproxy.flow.prepare.openai_breakpoints import with_openai_breakpoints
from kvproxy.flow.prepare.unread_writes import BlockPosition, UnreadPrefix
from kvproxy.providers.cache_rules import CacheRule, cache_rule, rule_of_marks

Lifetime = Literal["5m", "1h"]
_EVERY_MESSAGE = 2**31
_ADJACENT_BYTES = 512 * BYTES_PER_TOKEN
UNMARKED_BLOCKS = frozenset((*REASONING_BLOCKS, "fallback", "mcp_tool_listing"))
"""Types of content blocks that accept no breakpoint."""
_SECTIONS = ("tools", "system", "messages")


@dataclass(frozen=True, slots=True)
class _BlockPosition:
    section: str
    item: int  # Index of the tool, system block, or message.
    part: int  # Index of the block in its message; 0 in the other sections.
    end: int  # Bytes of the prompt up to the end of the block.
    is_marked: bool  # The client set a breakpoint on the block.


def rule_for_breakpoints(request: ApiRequest) -> CacheRule | None:
    """Return the rule of the provider whose breakpoints the API and the model accept; None without such a rule."""
    if request.api.name == "messages":
        return rule_of_marks(request.model)
    rule = cache_rule(request.model) if request.api.name in ("chat", "responses") else None
    return rule if rule is not None and rule.mark_field == "prompt_cache_breakpoint" else None


def with_breakpoints(
    request: ApiRequest,
    last_one_hour_message: int = -1,
    *,
    is_continued: bool = True,
    unread: UnreadPrefix | None = None,
) -> ApiRequest:
    """Return the request with the breakpoints that its rule requires.

    With the rule `breakpoints = "auto"`, blocks up to the message with index `last_one_hour_message` are cached for one hour,
    and later blocks for five minutes. With -1, all blocks are cached for five minutes.

    If no later request continues the conversation (`is_continued`), the prompt's end is not cached. If no later request is
    expected to read the prompt (`unread`), `auto` caches for five minutes, and repeated failures cache the unchanged blocks only.
    """
    lifetime, rule = request.control.rule.breakpoints, rule_for_breakpoints(request)
    if lifetime is None or rule is None or not _is_well_formed(request.body):
        return request
    if rule.mark_field == "prompt_cache_breakpoint":
        return with_openai_breakpoints(request, rule, is_continued=is_continued)
    positions = list(_find_positions(request.body))
    if unread is not None:
        last_one_hour_message = -1
        if unread.is_worth_no_write:
            is_continued, request = False, replace(request, omits_breakpoints=True)
            positions = [position for position in positions if _is_before(position, unread.changed)]
    chosen = _choose_breakpoints(request.body, positions, rule, last_one_hour_message, is_continued=is_continued)
    if lifetime != "auto":
        last_one_hour_message = _EVERY_MESSAGE if lifetime == "1h" else -1
    body = (
        request.body
        if is_continued
        else {name: request.body[name] for name in request.body if name != BREAKPOINT_FIELD}
    )
    body = _set_breakpoints(body, chosen, last_one_hour_message)
    if body == request.body:
        return request
    # For listings, the journal, and savings.
    sections = [position.section for position in positions if position in chosen]
    counts = [f"{sections.count(name)} {name}" for name in _SECTIONS if name in sections]
    long = sum(_block_lifetime(position.section, position.item, last_one_hour_message) == "1h" for position in chosen)
    counts += [f"{long} for 1h"] if long else []
    return request.with_cache_fields(body, f"{BREAKPOINTS_TAG}{' + '.join(counts) or 'none'}")


def _is_well_formed(body: JsonObject) -> bool:
    lists = [body.get(name) for name in _SECTIONS]
    lists += [message.get("content") for message in objects(body.get("messages"))]
    return all(len(objects(value)) == len(value) for value in lists if isinstance(value, list))


def _find_positions(body: JsonObject) -> Iterator[_BlockPosition]:
    end = 0
    for section in _SECTIONS:
        for item, holder in enumerate(content_blocks(body.get(section))):
            parts = content_blocks(holder.get("content")) if section == "messages" else [holder]
            for part, block in enumerate(parts):
                end += len(dumps(block))
                if _accepts_breakpoint(block):
                    yield _BlockPosition(section, item, part, end, BREAKPOINT_FIELD in block)


def _is_before(position: _BlockPosition, other: BlockPosition) -> bool:
    one, two = ((_SECTIONS.index(place.section), place.item) for place in (position, other))
    return one < two


def _accepts_breakpoint(block: JsonObject) -> bool:
    if block.get("type") in UNMARKED_BLOCKS or block.get("defer_loading") is True:
        return False
    return block.get("type") != "text" or bool(str(block.get("text", "")).strip())


def _choose_breakpoints(
    body: JsonObject,
    positions: list[_BlockPosition],
    rule: CacheRule,
    last_one_hour_message: int,
    *,
    is_continued: bool,
) -> set[_BlockPosition]:
    answers = [item for item, message in enumerate(objects(body.get("messages"))) if message.get("role") == "assistant"]
    earlier = [
        position for position in positions if position.section != "messages" or position.item < max(answers, default=0)
    ]
    if not is_continued:
        positions = earlier
    messages, system, tools = (
        [position for position in positions if position.section == name] for name in _SECTIONS[::-1]
    )
    wanted = [
        *messages[-1:],
        *[position for position in messages if position.item <= last_one_hour_message][-1:],
        *[position for position in earlier if position.section == "messages"][-1:],
        *[position for position in reversed(positions) if position.is_marked],
        *system[-1:],
        *tools[-1:],
    ]
    # A breakpoint of the body itself counts, too.
    is_automatic = is_continued and isinstance(body.get(BREAKPOINT_FIELD), dict)
    most = rule.max_marks - is_automatic
    minimum = (rule.minimum_tokens or 0) * BYTES_PER_TOKEN
    long_enough = list(dict.fromkeys(position for position in wanted if position.end >= minimum))
    chosen = long_enough[:most]
    for end in tools[-1:]:
        # Other sessions have the same tools. A mark of the client shortly after them adds little.
        near = [
            position
            for position in chosen
            if position.section == "system" and position.end - end.end <= _ADJACENT_BYTES
        ]
        if end in long_enough[most:] and near:
            chosen[chosen.index(near[0])] = end
    return set(chosen)


def _block_lifetime(section: str, item: int, last_one_hour_message: int) -> Lifetime:
    return "1h" if last_one_hour_message >= (item if section == "messages" else 0) else "5m"


def _set_breakpoints(body: JsonObject, chosen: set[_BlockPosition], last_one_hour_message: int) -> JsonObject:
    at = {(position.section, position.item, position.part) for position in chosen}
    marked = dict(body)
    if isinstance(body.get(BREAKPOINT_FIELD), dict):
        marked[BREAKPOINT_FIELD] = _breakpoint(
            body, _block_lifetime("messages", len(objects(body.get("messages"))) - 1, last_one_hour_message)
        )
    for section in ("tools", "system"):
        if section in body:
            parts = {item for name, item, _ in at if name == section}
            marked[section] = _set_block_breakpoints(
                body[section], parts, _block_lifetime(section, 0, last_one_hour_message)
            )
    messages: list[Json] = []
    for item, message in enumerate(objects(body.get("messages"))):
        parts = {part for name, number, part in at if (name, number) == ("messages", item)}
        lifetime = _block_lifetime("messages", item, last_one_hour_message)
        messages.append({**message, "content": _set_block_breakpoints(message.get("content"), parts, lifetime)})
    return {**marked, "messages": messages}


def _set_block_breakpoints(content: Json, parts: set[int], lifetime: Lifetime) -> Json:
    if isinstance(content, str) and not parts:
        return content
    marked: list[Json] = []
    for part, block in enumerate(content_blocks(content)):
        plain = {name: value for name, value in block.items() if name != BREAKPOINT_FIELD}
        if isinstance(plain.get("content"), list):
            plain["content"] = _set_block_breakpoints(plain["content"], set(), lifetime)
        marked.append({**plain, BREAKPOINT_FIELD: _breakpoint(block, lifetime)} if part in parts else plain)
    return marked


def _breakpoint(holder: JsonObject, lifetime: Lifetime) -> Json:
    marker = holder.get(BREAKPOINT_FIELD)
    if isinstance(marker, dict) and (marker.get("ttl") or "5m") == lifetime:
        return marker
    return {"type": "ephemeral"} if lifetime == "5m" else {"type": "ephemeral", "ttl": lifetime}


def find_last_one_hour_message(body: JsonObject) -> int:
    """Return the index of the last message with a breakpoint for one hour, or -1."""
    for item, message in reversed(list(enumerate(objects(body.get("messages"))))):
        markers = [field(block, BREAKPOINT_FIELD) for block in objects(message.get("content"))]
        if any(field(marker, "ttl") == "1h" for marker in markers):
            return item
    return -1
