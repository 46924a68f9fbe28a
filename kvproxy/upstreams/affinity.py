"""Affinity keys: requests of one conversation share a key, so that consistent hashing sends them to one engine."""

import hashlib
from collections import OrderedDict

import orjson
import xxhash

from kvproxy.apis.json import Json, field
from kvproxy.apis.request import ApiRequest

SESSION_HEADER = "x-session-id"
_CONTEXT_FIELDS = ("system", "instructions", "tools")
_TURN_FIELDS = ("messages", "input")

PIECE_BYTES = 512
"""Step by which a prefix grows."""
MIN_CONTINUATIONS = 4
"""Different continuations that prove a prefix to be shared between conversations."""
_MAX_PREFIXES = 16_384
_MAX_PREFIX_BYTES = 32 * 1024


class Affinity:
    """Computes affinity keys."""

    def __init__(self) -> None:
        self._prefixes = SharedPrefixes()

    def key(self, request: ApiRequest) -> bytes:
        """Return the key of the request's session, or of the conversation's first messages.

        The first messages end with the user's first turn, so that they are longer than a shared system prompt. A raw prompt has
        no turns: `SharedPrefixes` learns from the traffic which prefixes are shared.
        """
        if session := _session(request):
            return _digest(request, b"session", session.encode("utf-8", "replace"))
        body = request.body
        context = orjson.dumps([body[name] for name in _CONTEXT_FIELDS if name in body])
        turns = next((body[name] for name in _TURN_FIELDS if isinstance(body.get(name), list)), None)
        if isinstance(turns, list):
            first = next((place for place, turn in enumerate(turns) if field(turn, "role") == "user"), len(turns))
            return _digest(request, context, orjson.dumps(turns[: first + 1]))
        text = orjson.dumps(body.get("prompt", body.get("input")))
        return _digest(request, b"text", self._prefixes.conversation_prefix(context + text))


def _session(request: ApiRequest) -> str | None:
    """Return the client's name of the conversation: a header, OpenAI's field or Anthropic's."""
    body = request.body
    named: tuple[Json, ...] = (
        request.headers.get(SESSION_HEADER),
        body.get("prompt_cache_key"),
        field(body.get("metadata"), "user_id"),
    )
    return next((name for name in named if isinstance(name, str) and name), None)


def _digest(request: ApiRequest, *parts: bytes) -> bytes:
    # Each model has its own cache, and tenants choose session names independently.
    digest = hashlib.sha256()
    for part in (request.model.encode("utf-8", "replace"), request.tenant.encode("utf-8", "replace"), *parts):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


class SharedPrefixes:
    """Learns which prefixes of raw prompts are shared by several conversations, such as a system prompt."""

    def __init__(self) -> None:
        self._continuations: OrderedDict[int, list[bytes]] = OrderedDict()

    def conversation_prefix(self, text: bytes) -> bytes:
        """Return a digest of the shortest prefix that is not shared.

        The digest stays the same for later turns of a conversation, except once if its prefix turns out to be shared.
        """
        running, found, is_shared = xxhash.xxh3_64(), b"", True
        for start in range(0, min(len(text), _MAX_PREFIX_BYTES), PIECE_BYTES):
            end = start + PIECE_BYTES
            running.update(text[start:end])
            if is_shared:
                found = running.digest()
            is_shared = self._add(running.intdigest(), text[end : end + PIECE_BYTES])
        return found

    def _add(self, prefix: int, continuation: bytes) -> bool:
        """Add a continuation of a prefix; return whether the prefix is shared."""
        known = self._continuations.setdefault(prefix, [])
        self._continuations.move_to_end(prefix)
        if len(self._continuations) > _MAX_PREFIXES:
            self._continuations.popitem(last=False)
        if len(known) < MIN_CONTINUATIONS and continuation:
            # A longer continuation of the same text is the same conversation.
            same = [each for each in known if continuation.startswith(each) or each.startswith(continuation)]
            known[:] = [each for each in known if each not in same] + [max([*same, continuation], key=len)]
        return len(known) >= MIN_CONTINUATIONS
