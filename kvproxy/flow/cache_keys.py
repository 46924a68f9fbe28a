"""Computes the exact key of a request, and the namespace in which semantic lookups search."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache, partial

from kvproxy.apis.api import Api, Question
from kvproxy.apis.api_request import PUBLIC_TENANT, ApiRequest, is_large
from kvproxy.apis.json import Json, JsonMap, JsonObject, contains_any, dumps, field, objects
from kvproxy.apis.key_fields import MARKER_FIELDS
from kvproxy.apis.message_parts import with_plain_texts, without_moved_texts
from kvproxy.errors import InvalidRequest
from kvproxy.exchange import CacheKey, SemanticKey
from kvproxy.flow.random_ids import may_have_random_ids, without_random_ids
from kvproxy.index.entry import namespace_with_passages
from kvproxy.index.policies.guards.hidden_text import has_hidden_text
from kvproxy.index.search.conversations import SEPARATOR, join_turns
from kvproxy.index.search.passages import split_message
from kvproxy.settings.rules import NO_RULE

# The embedder reads 256 tokens, and could miss a difference between longer texts.
_MAX_SEMANTIC_BYTES = 800
_MAX_EARLIER_BYTES = 12_288  # Lookups read the conversations of all neighbours.
_ROLES = ("user", "assistant")
_PLAIN_TURN = frozenset({"role", "content", "type"})
# The same body may mean something else in another version.
_VERSIONS = ("anthropic-version", "anthropic-beta", "openai-beta")
# Their items and contents may have markers for prefix caching.
_MARKERS = tuple(name.encode() for name in MARKER_FIELDS)
_CALLS = (b"tool_calls",)
_ESCAPES = (b"\\u",)
_MARKED = ("messages", "system", "tools", "input")
_CONTENTS = ("content", "output")
_PROMPTS = ("messages", "input", "prompt")
_TEXT_BLOCKS = ("messages", "system")
# Some servers, such as llama.cpp, have another API at these paths without /v1.
_OTHER_WITHOUT_V1 = ("completions", "embeddings")
_EXACT_FLOAT = 2.0**53


def cache_key(request: ApiRequest, backend: str, *, shared: bool = False, conversations: bool = False) -> CacheKey:
    """Compute the keys of a request. Raises InvalidRequest if the body cannot be serialised.

    Args:
        backend: see `Backend.name`.
        shared: tenants share responses.
        conversations: earlier turns may differ in a semantic hit; see `CacheSettings.conversations`.
    """
    api, body = request.api, _relevant_fields(request)
    parts: JsonObject = {
        "endpoint": api.name,
        "tenant": PUBLIC_TENANT if shared else request.tenant,
        "backend": backend,
        "body": body,
    }
    if request.control.namespace:
        parts["namespace"] = request.control.namespace
    if request.query:
        parts["query"] = request.query
    if request.path and api.name in _OTHER_WITHOUT_V1:
        parts["path"] = request.path
    versions: JsonObject = {name: request.headers[name] for name in _VERSIONS if name in request.headers}
    if request.control.rule is not NO_RULE:
        _add_rule_fields(parts, versions, request)
    if versions:
        parts["headers"] = versions
    names = _keyed_headers(request.control.rule.key_headers, () if shared else tuple(request.tenant_headers))
    key = CacheKey(_digest(parts), parts, names, partial(_semantic_key, api, body, conversations, request.moved_texts))
    if is_large(len(request.raw)):
        # Compute it in this thread, although an exact hit does not need it.
        _ = key.semantic
    return key


@lru_cache(maxsize=64)
def _keyed_headers(of_rule: tuple[str, ...], of_tenant: tuple[str, ...]) -> frozenset[str]:
    return frozenset((*_VERSIONS, *of_rule, *of_tenant))


def _semantic_key(
    api: Api, body: JsonObject, conversations: bool, moved_texts: Sequence[str], key: CacheKey
) -> SemanticKey:
    body = _without_moved_texts(body, moved_texts) if moved_texts else body
    question = api.question(body)
    if question is None:
        return SemanticKey(key.exact, None, api.display_text(body))
    split = split_message(question.parts or [question.text]) if question.allows_semantic else None
    last = question.text if split is None else split.question
    similar = question.allows_semantic and _can_have_semantic_hits(last)
    earlier = _comparable_turns(question) if similar and conversations else []
    rest = _without_turns(question, len(earlier)) if earlier else question.rest
    beside: JsonObject = {} if split is None else {"passages": [split.before, split.after]}
    if moved_texts:
        beside["moved"] = list[Json](moved_texts)
    space = _digest({**key.parts, "body": rest, **({"passages": True} if beside else {})})
    if beside:
        space = namespace_with_passages(space, _digest(beside))
    if not similar:
        return SemanticKey(space, None, api.display_text(body))
    return SemanticKey(space, join_turns([*earlier, last]), question.text)


def _without_moved_texts(body: JsonObject, texts: Sequence[str]) -> JsonObject:
    """Return a body without the texts that edits moved to the end of the question."""
    for name in _PROMPTS:
        prompt = body.get(name)
        if isinstance(prompt, list) and prompt:
            return {**body, name: [*prompt[:-1], without_moved_texts(prompt[-1], texts)]}
        if isinstance(prompt, str):
            return {**body, name: without_moved_texts(prompt, texts)}
    return body


def _can_have_semantic_hits(text: str) -> bool:
    return len(text.encode("utf-8", "replace")) <= _MAX_SEMANTIC_BYTES and SEPARATOR not in text


def _comparable_turns(question: Question) -> list[str]:
    """Return the earlier turns of the user and the assistant; empty if they must be equal, because they cannot be compared."""
    turns = objects(question.rest[question.turns_field]) if question.turns_field else []
    roles = [turn.get("role") for turn in turns]
    count = next((place for place, role in enumerate(reversed(roles)) if role not in _ROLES), len(roles))
    start = len(roles) - count
    if roles[start:] != [*_ROLES] * (count // 2):
        return []
    texts = [text or "" for text in question.earlier_texts[start:]]
    is_plain = all(turn.keys() <= _PLAIN_TURN and turn.get("type", "message") == "message" for turn in turns[start:])
    if not is_plain or len("".join(texts).encode("utf-8", "replace")) > _MAX_EARLIER_BYTES:
        return []
    if any(not text.strip() or SEPARATOR in text or has_hidden_text(text) for text in texts):
        return []
    return texts


def _without_turns(question: Question, count: int) -> JsonObject:
    turns = objects(question.rest[question.turns_field])
    return {**question.rest, question.turns_field: list[Json](turns[: len(turns) - count])}


def _relevant_fields(request: ApiRequest) -> JsonObject:
    body: JsonObject = {}
    ignored = request.control.rule.ignore
    # An escape sequence could hide a word.
    is_hidden = not request.raw or contains_any(request.raw, _ESCAPES)
    # The proxy may have removed the client's markers from the raw bytes.
    marked = is_hidden or request.unmarked_body is not None or contains_any(request.raw, _MARKERS)
    has_calls = is_hidden or contains_any(request.raw, _CALLS)
    sent = request.body if request.unmarked_body is None else request.unmarked_body
    whole = _without_paths(sent, ignored) if ignored else sent
    for name, value in request.api.fields.relevant_items(whole):
        if name in _MARKED and marked:
            value = _without_markers(value, 3)
        if name in _TEXT_BLOCKS and request.api.name == "messages":
            value = with_plain_texts(value)
        elif name == "messages" and has_calls:
            value = _without_empty_contents(value)
        elif isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOAT:
            value = int(value)
        body[name] = value
    return without_random_ids(body) if is_hidden or may_have_random_ids(request.raw) else body


def _add_rule_fields(parts: JsonObject, headers: JsonObject, request: ApiRequest) -> None:
    rule = request.control.rule
    for name in rule.key_headers:
        if name in request.headers:
            # A header may be secret.
            headers[name] = _digest({name: request.headers[name]})[:16]
    fields: JsonObject = {}
    for path in rule.key_fields:
        value: Json = request.body
        for name in path.split("."):
            value = field(value, name)
        if value is not None:
            fields[path] = value
    if fields:
        parts["fields"] = fields


def _without_paths(body: JsonMap, paths: Sequence[str]) -> JsonMap:
    left = dict(body)
    for path in paths:
        name, _, rest = path.partition(".")
        inner = left.get(name)
        if not rest:
            left.pop(name, None)
        elif isinstance(inner, dict):
            left[name] = dict(_without_paths(inner, [rest]))
    return left


def _without_markers(value: Json, depth: int) -> Json:
    if isinstance(value, list) and depth:
        return [_without_markers(item, depth - 1) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {name: inner for name, inner in value.items() if name not in MARKER_FIELDS}
    return plain | {name: _without_markers(plain[name], depth) for name in _CONTENTS if name in plain}


def _without_empty_contents(value: Json) -> Json:
    """Return messages in which tool calls without text have no `content`: clients send an empty text, null, or nothing."""
    if not isinstance(value, list):
        return value
    return [
        {name: inner for name, inner in item.items() if name != "content"}
        if isinstance(item, dict) and item.get("tool_calls") and item.get("content") in ("", None)
        else item
        for item in value
    ]


def _digest(value: JsonObject) -> str:
    try:
        return hashlib.sha256(dumps(value, sort_keys=True)).hexdigest()
    except ValueError:
        raise InvalidRequest("the body is nested too deeply, or has half of a surrogate pair") from None
