"""Finds the prefixes of a prompt that end at a breakpoint, where a provider stores them."""

from collections.abc import Iterator

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, field, objects
from kvproxy.apis.key_fields import MARKER_FIELDS
from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.journal.sessions.session_matching import CommonPrefix, PromptChain
from kvproxy.providers.cache_rules import cache_rule, rule_of_marks

MAX_MARKS = 64
"""Most breakpoints of a prompt that are considered; providers allow four."""
_ONE_POSITION = ("tool_use", "tool_result")
"""Types of blocks of which a run is one position for Anthropic's search before a breakpoint."""


def marked_regions(request: ApiRequest, chain: PromptChain) -> tuple[int, ...] | None:
    """Return the numbers of regions of the prefixes that end at breakpoints; None without such a provider.

    OpenAI itself places a breakpoint at the latest message of the user or of a tool.
    """
    rule = None if request.api.name == "messages" else cache_rule(request.model)
    if rule is not None and rule.mark_field == "prompt_cache_breakpoint":
        name = "input" if request.api.name == "responses" else "messages"
        turns, options = objects(request.body.get(name)), request.body.get("prompt_cache_options")
        marked = {f"{name}[{index}]" for index, turn in enumerate(turns) if _has_marked_part(turn)}
        if field(options, "mode") != "explicit":
            ends = [index for index, turn in enumerate(turns) if _may_end_prefix(turn)]
            marked |= {f"{name}[{index}]" for index in ends[-1:]} or {name}
    elif request.api.name == "messages":
        messages = objects(request.body.get("messages"))
        contents = {"tools": request.body.get("tools"), "system": request.body.get("system")}
        marked = {name for name, content in contents.items() if _has_mark(content)}
        marked |= {f"messages[{index}]" for index, message in enumerate(messages) if _has_mark(message.get("content"))}
    else:
        return None
    counts = [count for count, name in enumerate(chain.names, 1) if name.partition(" ")[0] in marked]
    if _is_marked(request.body):
        counts.append(len(chain.names))
    return tuple(counts[-MAX_MARKS:])


def missing_mark(request: ApiRequest, marked: tuple[int, ...] | None, reuse: PrefixReuse) -> str | None:
    """Return the field that the provider requires to look for a cached prefix, if the request lacks it.

    A request that read or wrote a prefix had a breakpoint; transcripts do not contain it.
    """
    if marked != () or reuse.cached_tokens or reuse.written_5m or reuse.written_1h:
        return None
    rule = cache_rule(request.model)
    return "cache_control" if rule is None else rule.mark_field


def requested_lifetime(request: ApiRequest) -> float | None:
    """Return the seconds for which the request asks the provider to store its prefix; None without such a field."""
    rule = cache_rule(request.model)
    if rule is None or rule.lifetime_field is None:
        return None
    name, _, inner = rule.lifetime_field.partition(".")
    value = request.body.get(name)
    return rule.lifetimes.get(str(field(value, inner) if inner else value))


def nearer_mark(request: ApiRequest, chain: PromptChain, prefix: CommonPrefix) -> str | None:
    """Return the breakpoint that the request lacks if its breakpoints are too far after the stored prefix to find it."""
    ends = [count for count in prefix.turn.marked_regions or () if count <= prefix.regions]
    positions = list(_positions(request.body)) if ends and request.api.name == "messages" else []
    name = chain.names[max(ends) - 1].partition(" ")[0] if ends else ""
    of_prefix = [number for number, region, _ in positions if region == name]
    marks = [number for number, _, is_marked in positions if is_marked]
    marks += [number for number, *_ in positions[-1:] if _is_marked(request.body)]
    lookback = rule_of_marks(request.model).lookback
    if not marks or not of_prefix or any(of_prefix[0] <= mark < of_prefix[-1] + lookback for mark in marks):
        return None
    return f"cache_control within {lookback} blocks after the prefix"


def _positions(body: JsonObject) -> Iterator[tuple[int, str, bool]]:
    """Yield the position of each block, its region, and whether it has a breakpoint."""
    messages = objects(body.get("messages"))
    holders = [("tools", body.get("tools")), ("system", body.get("system"))]
    holders += [(f"messages[{index}]", message.get("content")) for index, message in enumerate(messages)]
    number, before = -1, None
    for region, content in holders:
        for block in [{}] if isinstance(content, str) else objects(content):
            if block.get("defer_loading") is not True:
                number += block.get("type") != before or before not in _ONE_POSITION
                before = block.get("type")
                yield number, region, _has_mark([block])


def _has_marked_part(turn: JsonObject) -> bool:
    return _has_mark(turn.get("content")) or _has_mark(turn.get("output"))


def _may_end_prefix(turn: JsonObject) -> bool:
    return turn.get("role") in ("user", "tool") or str(turn.get("type", "")).endswith("_output")


def _has_mark(content: Json) -> bool:
    return any(_is_marked(block) or _has_mark(block.get("content")) for block in objects(content))


def _is_marked(value: JsonObject) -> bool:
    return any(name in value for name in MARKER_FIELDS)
