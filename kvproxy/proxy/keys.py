"""The names under which an answer is kept: an exact key, and the namespace inside which similar questions are sought."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kvproxy.errors import Unkeyable
from kvproxy.proxy.backend import Call

# The embedder reads some 256 tokens; of two longer texts it could miss the difference.
_MAX_SEMANTIC_BYTES = 800
PUBLIC = "public"
# Servers differ in the header by which they tell clients apart; any of them makes a tenant of its own.
_CREDENTIALS = ("authorization", "api-key", "x-api-key", "openai-organization", "openai-project", "cookie")
# Which version of an API answers; the same body means another thing in another version.
_VERSIONS = ("anthropic-version", "anthropic-beta", "openai-beta")


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


def cache_key(call: Call, backend: str, *, shared: bool = False) -> CacheKey:
    """Keys of a request to a backend.

    Args:
        shared: give every tenant the same keys, so that each is answered from all responses.

    Raises:
        Unkeyable: the body cannot be written again.
    """
    dialect = call.dialect
    body = {name: value for name, value in call.body.items() if name not in dialect.irrelevant and value is not None}
    tenant = PUBLIC if shared else call.tenant
    whole: dict[str, Any] = {"endpoint": call.endpoint, "tenant": tenant, "backend": backend, "body": body}
    if call.query:
        whole["query"] = call.query
    versions = {name: call.headers[name] for name in _VERSIONS if name in call.headers}
    if versions:
        whole["headers"] = versions
    exact = _digest(whole)
    question = dialect.question(body)
    if question is None:
        return CacheKey(exact, exact, None, dialect.shown(body))
    similar = question.similar and len(question.text.encode()) <= _MAX_SEMANTIC_BYTES
    space = _digest(whole | {"body": question.rest})
    return CacheKey(exact, space, question.text if similar else None, question.text)


def _digest(value: dict[str, Any]) -> str:
    try:
        return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except orjson.JSONEncodeError:
        raise Unkeyable("the body is nested more than 250 levels deep, or has an integer beyond 64 bits") from None
