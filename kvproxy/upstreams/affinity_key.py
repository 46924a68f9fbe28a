"""The key of a request for consistent hashing: requests with one key share a prefix."""

import hashlib

from kvproxy.apis.api_request import ApiRequest, session_name
from kvproxy.apis.json import dumps, field

_CONTEXT_FIELDS = ("system", "instructions", "tools")
_TURN_FIELDS = ("messages", "input")
_PREFIX_BYTES = 2048  # Of a prompt without messages.


def affinity_key(request: ApiRequest) -> bytes:
    """Return the key for consistent hashing: a digest of the session id, or else of all messages up to the first user message."""
    body = request.body
    for name in (session_name(request), body.get("prompt_cache_key"), field(body.get("metadata"), "user_id")):
        if isinstance(name, str) and name:
            return _digest(request, b"session", name.encode("utf-8", "replace"))
    context = dumps([body[name] for name in _CONTEXT_FIELDS if name in body])
    turns = next((body[name] for name in _TURN_FIELDS if isinstance(body.get(name), list)), None)
    if isinstance(turns, list):
        first = next((place for place, turn in enumerate(turns) if field(turn, "role") == "user"), len(turns))
        return _digest(request, context, dumps(turns[: first + 1]))
    text = dumps(body.get("prompt", body.get("input")))
    return _digest(request, b"text", (context + text)[:_PREFIX_BYTES])


def _digest(request: ApiRequest, *parts: bytes) -> bytes:
    # Each model has its own cache, and tenants choose session names independently.
    digest = hashlib.sha256()
    for part in (request.model.encode("utf-8", "replace"), request.tenant.encode("utf-8", "replace"), *parts):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
