"""Matches the verdicts of comparisons with records: each may come first."""

from collections import OrderedDict
from typing import TypeVar

from kvproxy.exchange import Exchange
from kvproxy.journal.cache_history import ComparisonEnded

T = TypeVar("T")
_MAX_WAITING = 4_096


class LateVerdicts:
    """The last verdicts without a record, and the last compared requests without a verdict, by the id of the request."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[str, str] = OrderedDict()
        self._numbers: OrderedDict[str, int] = OrderedDict()

    def verdict_of(self, exchange: Exchange, number: int) -> str | None:
        """Return the verdict on an exchange. None before the comparison, and for an exchange without one."""
        verdict = self._verdicts.pop(exchange.request_id, None)
        is_compared = exchange.lookup is not None and exchange.lookup.chosen is not None and exchange.hit is None
        if verdict is None and is_compared:
            _add(self._numbers, exchange.request_id, number)
        return verdict

    def number_of(self, ended: ComparisonEnded) -> int | None:
        """Return the number of the compared request's record; None if it has none yet."""
        number = self._numbers.pop(ended.request, None)
        if number is None:
            _add(self._verdicts, ended.request, ended.verdict)
        return number

    def clear(self) -> None:
        self._verdicts.clear()
        self._numbers.clear()


def _add(waiting: OrderedDict[str, T], request: str, value: T) -> None:
    waiting[request] = value
    if len(waiting) > _MAX_WAITING:
        waiting.popitem(last=False)
