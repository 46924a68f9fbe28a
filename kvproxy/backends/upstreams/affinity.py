"""What keeps a conversation on one engine where nobody knows what the engines hold: its name, or how it begins."""

import hashlib

import orjson

from kvproxy.apis.json import Json, field
from kvproxy.apis.request import ApiRequest
from kvproxy.routing.beginnings import Beginnings

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
