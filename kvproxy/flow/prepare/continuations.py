"""Estimates whether a later request will read the end of a prompt from the provider's cache, by kind of request.

A breakpoint at the end of a prompt costs the price of a write. A summary, a title, or a run with one request has no successor
that reads it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.apis.agent_requests import is_single_request, request_kind
from kvproxy.apis.api_request import ApiRequest
from kvproxy.providers.cache_rules import CacheRule

_MAX_WAITING = 4_096
_MAX_KINDS = 1_024
_PRIOR_WEIGHT = 4.0
_USUAL_RATE = 0.9
"""Share of requests that are continued in time, before any request of a kind was seen."""
_DEFAULT_READ_RATIO = 0.1
_SINGLE_KIND = "single "
"""Beginning of the kinds of requests for a summary or a title."""


@dataclass(slots=True)
class _Counts:
    """Requests that were continued, or whose time has passed, and the continued ones among them."""

    ended: int = 0
    continued: int = 0


class Continuations:
    """Counts requests with and without a successor within the lifetime of the provider's cache."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: OrderedDict[str, _Counts] = OrderedDict()
        self._waiting: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        """By the digest of its conversation, the expiry and the kind of each request without a successor."""

    def expects_another(self, request: ApiRequest, digests: Sequence[bytes], rule: CacheRule) -> bool:
        """Note a request. Return whether a breakpoint at its end costs less than it is expected to save.

        Args:
            digests: of the conversation up to each message, see `conversation_digests`.
        """
        now, kind, is_single = self._clock(), request_kind(request), is_single_request(request)
        if is_single:
            # The conversation that it summarises has the same beginning, and goes on.
            kind = f"{_SINGLE_KIND}{kind}"
        self._end_expired(now)
        continued = next((digest for digest in reversed(digests) if digest in self._waiting), None)
        if continued is not None:
            expiry, earlier_kind = self._waiting.pop(continued)
            self._end(earlier_kind, is_continued=expiry > now)
        if digests:
            self._waiting[digests[-1]] = now + rule.default_lifetime, kind
            if len(self._waiting) > _MAX_WAITING:
                self._waiting.popitem(last=False)
        counts = self._kinds.get(kind, _Counts())
        usual = 0.0 if is_single else _USUAL_RATE
        rate = (counts.continued + _PRIOR_WEIGHT * usual) / (counts.ended + _PRIOR_WEIGHT)
        return rate > _least_rate(rule)

    def _end_expired(self, now: float) -> None:
        while self._waiting:
            expiry, kind = next(iter(self._waiting.values()))
            if expiry > now:
                return
            self._waiting.popitem(last=False)
            self._end(kind, is_continued=False)

    def _end(self, kind: str, *, is_continued: bool) -> None:
        counts = self._kinds.setdefault(kind, _Counts())
        self._kinds.move_to_end(kind)
        counts.ended += 1
        counts.continued += is_continued
        if len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)


def _least_rate(rule: CacheRule) -> float:
    """Return the least share of continued requests with which a write pays: its surcharge, relative to the saving of a read."""
    write = rule.default_write_ratio or 1.0
    read = _DEFAULT_READ_RATIO if rule.read_ratio is None else rule.read_ratio
    return (write - 1.0) / (write - read)
