"""The names under which an answer is kept: an exact key, and the namespace inside which similar questions are sought."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kvproxy.errors import InvalidRequest
from kvproxy.proxy.backend import Call

# What cannot change the answer's content; everything else, known or not, is part of the key.
_IRRELEVANT = frozenset(
    "stream stream_options user metadata store service_tier safety_identifier prompt_cache_key".split()
)
# A request with any of these is answered from an equal one only, never from a similar one.
_EXACT_ONLY = frozenset(
    "tools tool_choice functions function_call logprobs top_logprobs logit_bias modalities audio prediction".split()
)
# The embedder reads some 256 tokens; of two longer texts it could miss the difference.
_MAX_SEMANTIC_BYTES = 800
PUBLIC = "public"
# Servers differ in the header by which they tell clients apart; any of them makes a tenant of its own.
_CREDENTIALS = ("authorization", "api-key", "x-api-key", "openai-organization", "openai-project", "cookie")


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Names of a request.

    Attributes:
        exact: digest over everything that can change the answer.
        namespace: the same less the text of the last user turn.
        text: that text, where similar questions may be answered alike; else None.
        prompt: what to show for the request in listings.
    """

    exact: str
    namespace: str
    text: str | None
    prompt: str


def tenant_of(headers: Mapping[str, str]) -> str:
    """Who asks: a digest of the headers that carry credentials, `public` without any. Names in lower case."""
    given = {name: headers[name] for name in _CREDENTIALS if headers.get(name)}
    return _digest(given)[:16] if given else PUBLIC


def cache_key(call: Call, backend: str) -> CacheKey:
    """Keys of a request to a backend."""
    body = {name: value for name, value in call.body.items() if name not in _IRRELEVANT and value is not None}
    whole = {"endpoint": call.endpoint, "tenant": call.tenant, "backend": backend, "body": body}
    if call.query:
        whole["query"] = call.query
    exact = _digest(whole)
    text = _last_question(body) if call.endpoint == "chat" else None
    if text is None:
        return CacheKey(exact, exact, None, _shown(call))
    *earlier, last = body["messages"]
    rest = {name: value for name, value in last.items() if name != "content"}
    space = whole | {"body": body | {"messages": earlier, "last": rest}}
    fits = len(text.encode()) <= _MAX_SEMANTIC_BYTES
    return CacheKey(exact, _digest(space), text if fits and _may_match(body) else None, text)


def _may_match(body: dict[str, Any]) -> bool:
    if any(body.get(name) for name in _EXACT_ONLY) or body.get("n", 1) != 1:
        return False
    kind = body.get("response_format")
    if kind is not None and (not isinstance(kind, dict) or kind.get("type") != "text"):
        return False
    return all(_text(message.get("content")) is not None for message in body["messages"])


def _last_question(body: dict[str, Any]) -> str | None:
    last = body["messages"][-1]
    text = _text(last.get("content")) if last.get("role") == "user" else None
    return text if text and text.strip() else None


def _text(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return None


def _shown(call: Call) -> str:
    if call.endpoint == "completions":
        prompt = call.body.get("prompt")
        return prompt if isinstance(prompt, str) else orjson.dumps(prompt).decode()
    content = call.body["messages"][-1].get("content")
    return content if isinstance(content, str) else orjson.dumps(content).decode()


def _digest(value: dict[str, Any]) -> str:
    try:
        return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except orjson.JSONEncodeError:
        raise InvalidRequest("the body is nested too deeply: at most 250 levels") from None
