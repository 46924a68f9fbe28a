"""Sets OpenAI's cache breakpoints (`prompt_cache_breakpoint`) and the cache's key, for models that accept them.

OpenAI itself caches the prompt up to its latest message, and finds the ends of earlier messages. A breakpoint after the
instructions lets other conversations read them. If nobody continues a conversation, `mode = "explicit"` avoids the write.
"""

import hashlib
from collections.abc import Sequence

from kvproxy.apis.api_request import BREAKPOINTS_TAG, BYTES_PER_TOKEN, ApiRequest
from kvproxy.apis.json import Json, JsonObject, as_object, dumps, objects
from kvproxy.apis.message_parts import role_of
from kvproxy.providers.cache_rules import CacheRule

MARK = "prompt_cache_breakpoint"
OPTIONS = "prompt_cache_options"
KEY = "prompt_cache_key"
_INSTRUCTIONS = ("system", "developer")
_BREAKPOINT: JsonObject = {"mode": "explicit"}
_MARKED_PARTS = ("text", "image_url", "input_audio", "file", "input_text", "input_image", "input_file")
_KEY_LETTERS = 24


def with_openai_breakpoints(request: ApiRequest, rule: CacheRule, *, is_continued: bool) -> ApiRequest:
    """Return the request with a breakpoint after its instructions, and with a key; see `with_breakpoints`."""
    name = "input" if request.api.name == "responses" else "messages"
    turns = objects(request.body.get(name))
    chosen = _choose_turns(request.body, turns, rule, is_continued=is_continued)
    marked = {index: turn for index in chosen if (turn := _marked_turn(turns[index], name)) is not None}
    body: JsonObject = dict(request.body)
    if marked:
        body[name] = [marked.get(index, turn) for index, turn in enumerate(turns)]
    if not body.get(KEY):
        # Prefixes are found only with the same key. With a key of the tenant, no other tenant can probe its prompts.
        body[KEY] = _cache_key_of(request.tenant)
    options = body.get(OPTIONS)
    if not is_continued and (options is None or (isinstance(options, dict) and "mode" not in options)):
        body[OPTIONS] = {**as_object(options or {}), "mode": "explicit"}
    heads = sum(turns[index].get("role") in _INSTRUCTIONS for index in marked)
    counts = [f"{count} {section}" for count, section in ((heads, "system"), (len(marked) - heads, name)) if count]
    return request.with_cache_fields(body, f"{BREAKPOINTS_TAG}{' + '.join(counts) or 'none'}")


def _choose_turns(body: JsonObject, turns: Sequence[JsonObject], rule: CacheRule, *, is_continued: bool) -> list[int]:
    head = next((index for index, turn in enumerate(turns) if turn.get("role") not in _INSTRUCTIONS), len(turns)) - 1
    size = sum(len(dumps(body[name])) for name in ("tools", "instructions") if body.get(name))
    size += sum(len(dumps(turn)) for turn in turns[: head + 1])
    chosen = [head] if head >= 0 and size >= (rule.minimum_tokens or 0) * BYTES_PER_TOKEN else []
    if not is_continued and (end := _previous_end(turns)) is not None:
        # Without the implicit breakpoint, OpenAI looks for cached prefixes only at explicit ones.
        chosen.append(end)
    marks = sum(MARK in part for turn in turns for part in objects(turn.get("content")))
    return chosen[: max(0, rule.max_marks - (1 if is_continued else 0) - marks)]


def _previous_end(turns: Sequence[JsonObject]) -> int | None:
    """Return the index of the last turn of the previous request, before the last answer."""
    last = next((index for index in range(len(turns) - 1, -1, -1) if _is_answer(turns[index])), 0)
    while last > 0 and _is_answer(turns[last - 1]):
        last -= 1
    return last - 1 if last > 0 else None


def _is_answer(turn: JsonObject) -> bool:
    return role_of(turn) == "assistant"


def _marked_turn(turn: JsonObject, name: str) -> JsonObject | None:
    """Return a turn with a breakpoint at its end; None if its last part does not accept it."""
    field = "output" if "output" in turn and "content" not in turn else "content"
    content = turn.get(field)
    if isinstance(content, str) and content:
        kind = "input_text" if name == "input" else "text"
        return {**turn, field: [{"type": kind, "text": content, MARK: _BREAKPOINT}]}
    parts = objects(content)
    if not parts or parts[-1].get("type") not in _MARKED_PARTS:
        return None
    last: Json = parts[-1] if MARK in parts[-1] else {**parts[-1], MARK: _BREAKPOINT}
    return {**turn, field: [*parts[:-1], last]}


def _cache_key_of(tenant: str) -> str:
    return f"kvproxy-{hashlib.sha256(tenant.encode('utf-8', 'replace')).hexdigest()[:_KEY_LETTERS]}"
