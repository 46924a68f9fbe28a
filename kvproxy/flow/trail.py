"""Writes what became of a request into its record, from its outcome."""

import time

from kvproxy.errors import KvproxyError
from kvproxy.flow.outcome import Outcome
from kvproxy.flow.single_flight import Flight
from kvproxy.index.entry import Entry
from kvproxy.journal.draft import Draft
from kvproxy.journal.reasons import reason_of_failure

GONE = 499
"""The customary status in logs of a request whose client has left."""


def hit(draft: Draft, outcome: Outcome, entry: Entry) -> None:
    """A stored answer was given."""
    draft.layer = "exact" if outcome.match is None else "semantic"
    draft.status = 200
    draft.hit = entry
    draft.first = time.perf_counter()


def forwarded(draft: Draft, outcome: Outcome, flight: Flight) -> None:
    """The backend's answer begins; it may be whole."""
    source = flight.source
    draft.layer = "shared" if outcome.collapsed else "forward"
    draft.status = outcome.status
    draft.first = time.perf_counter()
    if source is not None:
        # One that joined late did not wait for all of it.
        draft.opened = max(source.opened, draft.began)
        draft.upstream = source.upstream


def ended(draft: Draft, flight: Flight) -> None:
    """The backend's answer is over: read to its end, broken off, or left by its client."""
    draft.ended = time.perf_counter()
    source = flight.source
    if flight.ended and flight.error is not None:
        draft.failure = reason_of_failure(flight.error)
    draft.left = not flight.ended
    if source is None:
        return
    draft.predicted_tokens = source.predicted
    if source.prefix is not None:
        draft.prompt_tokens, draft.reused_tokens = source.prefix.prompt_tokens, source.prefix.cached_tokens
    if source.usage is not None:
        draft.completion_tokens = source.usage[1]
        draft.prompt_tokens = draft.prompt_tokens or source.usage[0]
    draft.entry = flight.entry


def renewed(draft: Draft, flight: Flight) -> None:
    """A stored answer was computed anew; call it before the flight is left."""
    draft.layer = "renewed"
    source = flight.source
    if source is not None:
        draft.status, draft.upstream = source.status, source.upstream
        draft.opened = draft.first = max(source.opened, draft.began)
    ended(draft, flight)


def failed(draft: Draft, error: BaseException) -> None:
    """Nobody answered, or nobody is there to read it."""
    draft.failure = reason_of_failure(error)
    draft.status = error.status if isinstance(error, KvproxyError) else 500 if isinstance(error, Exception) else GONE
    draft.ended = time.perf_counter()
