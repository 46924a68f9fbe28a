"""Computes the exact key of a request, and the namespace in which semantic lookups search."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import orjson

from kvproxy.apis.api import Question
from kvproxy.apis.api_request import PUBLIC_TENANT, ApiRequest
from kvproxy.apis.json import Json, JsonMap, JsonObject, field, objects
from kvproxy.errors import InvalidRequest
from kvproxy.exchange import CacheKey
from kvproxy.flow.conversation_digests import BREAKPOINT_FIELD
from kvproxy.index.policies.guards.hidden_text import has_hidden_text
from kvproxy.index.search.conversations import SEPARATOR, join_turns
from kvproxy.settings.access import TENANT_HEADERS
from kvproxy.settings.rules import NO_RULE

# The embedder reads 256 tokens, and could miss a difference between longer texts.
_MAX_SEMANTIC_BYTES = 800
# The same body may mean something else in another version.
_VERSIONS = ("anthropic-version", "anthropic-beta", "openai-beta")
# Their items and contents may have markers for prefix caching.
_MARKED = ("messages", "system", "tools", "input")
_EXACT_FLOAT = 2.0**53
_CALL_REFERENCES = ("tool_call_id", "tool_use_id", "call_id")
_CALL_TYPES = ("function", "custom", "tool_use", "server_tool_use", "function_call", "custom_tool_call")
_CALL_WORDS = ("call", "tool", "function", "custom")  # Each reference and type contains one of them.
_MESSAGE_LISTS = ("messages", "input")


def tenant_of(
    headers: Mapping[str, str], user_headers: Sequence[str] = TENANT_HEADERS, client: str | None = None
) -> str:
    """Return the tenant of a request: `client`, followed by a digest of the headers that name a user.

    Return `public` if the request has no client and no such header.

    Args:
        headers: the request's headers, with names in lower case.
        user_headers: headers that name a user (setting `access.tenant_headers`).
        client: tenant of the authenticated client; None if the proxy has no clients.
    """
    given: JsonObject = {name: headers[name] for name in user_headers if headers.get(name)}
    user = _digest(given)[:16] if given else None
    return "/".join(part for part in (client, user) if part is not None) or PUBLIC_TENANT


def cache_key(request: ApiRequest, backend: str, *, shared: bool = False, conversations: bool = False) -> CacheKey:
    """Compute the keys of a request. Raises InvalidRequest if the body cannot be serialised.

    Args:
        backend: see `Backend.name`.
        shared: tenants share responses.
        conversations: earlier user turns may differ in a semantic hit; see `CacheSettings.conversations`.
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
    versions: JsonObject = {name: request.headers[name] for name in _VERSIONS if name in request.headers}
    if request.control.rule is not NO_RULE:
        _add_rule_fields(parts, versions, request)
    if versions:
        parts["headers"] = versions
    exact = _digest(parts)
    question = api.question(body)
    if question is None:
        return CacheKey(exact, exact, None, api.display_text(body), parts)
    similar = question.allows_semantic and _can_have_semantic_hits(question.text)
    splits = similar and conversations and question.earlier_texts
    rest, earlier = _split_earlier_turns(question) if splits else (question.rest, [])
    space = _digest({**parts, "body": rest})
    return CacheKey(exact, space, join_turns([*earlier, question.text]) if similar else None, question.text, parts)


def _can_have_semantic_hits(text: str) -> bool:
    return len(text.encode("utf-8", "replace")) <= _MAX_SEMANTIC_BYTES and SEPARATOR not in text


def _split_earlier_turns(question: Question) -> tuple[JsonObject, list[str]]:
    # Answers stay in the body, so that a follow-up such as `continue` matches only after the same answers.
    turns, texts = objects(question.rest[question.turns_field]), list[str]()
    for place, text in enumerate(question.earlier_texts[:-1]):
        turn, following = turns[place : place + 2]
        is_answered = turn.get("role") == "user" and following.get("role") == "assistant"
        if is_answered and text and _can_have_semantic_hits(text) and not has_hidden_text(text):
            texts.append(text)
            turns[place] = {**turn, "content": None}
    return {**question.rest, question.turns_field: list[Json](turns)}, texts


def _relevant_fields(request: ApiRequest) -> JsonObject:
    body: JsonObject = {}
    ignored = request.control.rule.ignore
    marked = _may_contain(request.raw, (BREAKPOINT_FIELD,))
    for name, value in (_without_paths(request.body, ignored) if ignored else request.body).items():
        if value is None or name in request.api.ignored_fields:
            continue
        if name in _MARKED and marked:
            value = _without_breakpoints(value, 3)
        elif isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOAT:
            value = int(value)
        body[name] = value
    return number_call_ids(body) if _may_contain(request.raw, _CALL_WORDS) else body


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


def _without_breakpoints(value: Json, depth: int) -> Json:
    if isinstance(value, list) and depth:
        return [_without_breakpoints(item, depth - 1) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {name: inner for name, inner in value.items() if name != BREAKPOINT_FIELD}
    return plain | {"content": _without_breakpoints(plain["content"], depth)} if "content" in plain else plain


def _digest(value: JsonObject) -> str:
    try:
        return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except orjson.JSONEncodeError:
        raise InvalidRequest("the body is nested more than 250 levels deep, or has an integer beyond 64 bits") from None


def _may_contain(raw: bytes, words: Sequence[str]) -> bool:
    # An escape sequence could hide a word.
    return not raw or b"\\u" in raw or any(word.encode() in raw for word in words)


def number_call_ids(body: JsonObject) -> JsonObject:
    """Replace random tool call ids by numbers, so that equal conversations have equal keys.

    Return the body unchanged if one of its other texts contains an id.
    """
    numbers: dict[str, str] = {}

    def replace_ids(value: Json) -> Json:
        if isinstance(value, list):
            return [replace_ids(item) for item in value]
        if not isinstance(value, dict):
            return value
        # Nine letters and digits: some servers accept no other form, and `kvproxy warm` sends stored requests again.
        return {
            name: numbers.setdefault(str(inner), f"call{len(numbers):05d}")
            if _is_call_id(value, name)
            else replace_ids(inner)
            for name, inner in value.items()
        }

    found = {name: replace_ids(body[name]) for name in _MESSAGE_LISTS if isinstance(body.get(name), list)}
    if not numbers or any(id in text for text in _strings([*found.values()]) for id in numbers):
        return body
    return {**body, **found}


def _is_call_id(holder: JsonObject, name: str) -> bool:
    return isinstance(holder[name], str) and (
        name in _CALL_REFERENCES or (name == "id" and holder.get("type") in _CALL_TYPES)
    )


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from value
        yield from _strings(list(value.values()))
