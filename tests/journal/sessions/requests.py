"""Finished requests of conversations, without a proxy."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any, Literal

from kvproxy.apis.api import ApiName
from kvproxy.apis.json import Json, JsonObject
from kvproxy.apis.message_parts import part_digests
from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.backends.protocol import ServingUpstream
from kvproxy.exchange import Exchange, ResponseFacts
from kvproxy.flow.cache_keys import cache_key
from kvproxy.flow.prepare.prompt_edits import apply_edits
from kvproxy.journal.journal import open_stored_journal
from kvproxy.journal.sessions.session_reader import Session, SessionReader, Turn
from kvproxy.settings.journal import JournalSettings, PriceSettings
from kvproxy.settings.rules import EditSettings
from tests.requests import api_request

START = 1_790_000_000.0
SYSTEM: JsonObject = {"role": "system", "content": "You are a careful assistant. " * 20}


def user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Json) -> JsonObject:
    return {"role": "assistant", "content": text, **more}


def request(
    messages: list[JsonObject],
    prompt_tokens: int,
    reused: int | None,
    at: float,
    *,
    answer: JsonObject | None = None,
    completion: int = 10,
    written: tuple[int, int] | None = None,
    headers: dict[str, str] | None = None,
    body: JsonObject | None = None,
    api: ApiName = "chat",
    edits: Sequence[EditSettings] = (),
    **fields: Any,
) -> Exchange:
    """A request that ended after one second.

    Args:
        at: seconds after START.
        written: tokens written for five minutes and one hour; None for a backend that does not report them.
    """
    whole: JsonObject = {"model": "m", "messages": list[Json](messages), **(body or {})}
    made = apply_edits(api_request(whole, api, headers=headers or {}), edits)
    exchange = Exchange(api, f"r{at:g}", "public", request=made, key=cache_key(made, "b"), status=200, layer="forward")
    exchange.arrived = START + at
    exchange.first_byte = exchange.ended = exchange.started + 1.0
    exchange.facts = ResponseFacts(
        prefix=None if reused is None else PrefixReuse(prompt_tokens, reused, *(written or (None, None))),
        usage=(prompt_tokens, completion),
        answer_digests=None if answer is None else part_digests(answer),
    )
    for name, value in fields.items():
        setattr(exchange.facts if hasattr(exchange.facts, name) else exchange, name, value)
    return exchange


def provider(url: str = "https://api.example") -> dict[str, object]:
    """Fields of an exchange with a paid API."""
    return {"served_by": ServingUpstream(url)}


class Sessions:
    """A journal and its sessions."""

    def __init__(self, place: str, text: Literal["hits", "all"] = "hits", **prices: PriceSettings) -> None:
        self.prices = prices
        self.place = place
        self.journal = open_stored_journal(place, JournalSettings(text=text, prices=prices))
        self._readers = ExitStack()

    def add(self, *exchanges: Exchange) -> None:
        for exchange in exchanges:
            self.journal.add(exchange)
        self.journal.flush()

    def restart(self) -> None:
        self.journal.close()
        self.journal = open_stored_journal(self.place, JournalSettings(prices=self.prices))

    def close(self) -> None:
        self._readers.close()
        self.journal.close()

    def reader(self) -> SessionReader:
        return SessionReader(self._readers.enter_context(closing(self.journal.reader())), self.prices)

    def turns(self, name: str = "1") -> list[Turn]:
        return self.reader().turns(name)

    def last(self) -> Turn:
        turn = self.reader().turn(self.journal.latest(1)[0].number)
        assert turn is not None
        return turn

    def list(self) -> list[Session]:
        return self.reader().sessions(100)
