"""What keeps a conversation on one engine where nobody knows what the engines hold: its name, or how it begins."""

import hashlib
from collections import OrderedDict

import orjson
import xxhash

from kvproxy.apis.json import Json, field
from kvproxy.apis.request import ApiRequest

PIECE = 512
"""Bytes by which a beginning grows."""
SHARED = 4
"""Different continuations that make a beginning a shared one."""
_MOST = 16_384
"""Beginnings that are remembered; the one that was not seen for longest goes first."""
_LONGEST = 32 * 1024
"""Bytes from which on texts are told apart no further."""


class Beginnings:
    """Learns which beginnings are shared from the texts that it is asked about."""

    def __init__(self) -> None:
        self._continuations: OrderedDict[int, list[bytes]] = OrderedDict()

    def own(self, text: bytes) -> bytes:
        """A digest of the shortest beginning behind which no text is known to part from several others.

        It stays the same for the next turn of a conversation, but for one change while its beginning is found to be shared,
        or grows to a whole piece.
        """
        running, found, is_shared = xxhash.xxh3_64(), b"", True
        for start in range(0, min(len(text), _LONGEST), PIECE):
            end = start + PIECE
            running.update(text[start:end])
            if is_shared:
                found = running.digest()
            is_shared = self._is_shared(running.intdigest(), text[end : end + PIECE])
        return found

    def _is_shared(self, beginning: int, following: bytes) -> bool:
        """Whether texts part behind this beginning; this one is counted too."""
        known = self._continuations.setdefault(beginning, [])
        self._continuations.move_to_end(beginning)
        if len(self._continuations) > _MOST:
            self._continuations.popitem(last=False)
        if len(known) < SHARED and following:
            # A conversation that has grown is the same one.
            grown = [each for each in known if following.startswith(each) or each.startswith(following)]
            known[:] = [each for each in known if each not in grown] + [max([*grown, following], key=len)]
        return len(known) >= SHARED


SESSION = "x-session-id"
_BEFORE = ("system", "instructions", "tools")
_TURNS = ("messages", "input")


class Affinity:
    """Gives equal keys to the requests of one conversation."""

    def __init__(self) -> None:
        self._beginnings = Beginnings()

    def key(self, request: ApiRequest) -> bytes:
        """The key of a request: of the session that it names, else of the conversation's beginning.

        That beginning goes up to the user's first turn, so that it is longer than a system prompt that all share. A prompt
        that is a plain text has no turns: there it is learnt from the traffic how much is shared.
        """
        name = session(request)
        if name is not None:
            return _digest(request, b"session", name.encode("utf-8", "replace"))
        body = request.body
        before = orjson.dumps([body[part] for part in _BEFORE if part in body])
        turns = next((body[part] for part in _TURNS if isinstance(body.get(part), list)), None)
        if isinstance(turns, list):
            return _digest(request, before, orjson.dumps(turns[: _first_turn(turns)]))
        text = orjson.dumps(body.get("prompt", body.get("input")))
        return _digest(request, b"text", self._beginnings.own(before + text))


def session(request: ApiRequest) -> str | None:
    """The name that a client gives its conversation: a header, OpenAI's field or Anthropic's."""
    named: Json
    for named in (
        request.headers.get(SESSION),
        request.body.get("prompt_cache_key"),
        field(request.body.get("metadata"), "user_id"),
    ):
        if isinstance(named, str) and named:
            return named
    return None


def _first_turn(turns: list[Json]) -> int:
    """How many messages there are up to the user's first one."""
    first = next((place for place, turn in enumerate(turns) if field(turn, "role") == "user"), len(turns))
    return first + 1


def _digest(request: ApiRequest, *parts: bytes) -> bytes:
    """A model of another name has another cache, and tenants name their sessions without knowing of each other."""
    found = hashlib.sha256()
    for part in (request.model.encode("utf-8", "replace"), request.tenant.encode("utf-8", "replace"), *parts):
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()
