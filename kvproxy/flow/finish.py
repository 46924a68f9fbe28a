"""Ends an exchange, and reports it once to metrics, journal, and telemetry."""

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

from kvproxy.errors import KvproxyError
from kvproxy.exchange import Exchange
from kvproxy.journal.reasons import reason_of_failure

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected before the response.
_log = logging.getLogger("kvproxy")


def record_failure(exchange: Exchange, error: BaseException) -> None:
    exchange.failure = reason_of_failure(error)
    if exchange.failure.startswith("disconnected"):
        exchange.layer, exchange.status = "disconnected", CLIENT_CLOSED_REQUEST
    else:
        exchange.layer = "error" if exchange.failure.startswith("error") else "refused"
        exchange.status = error.status if isinstance(error, KvproxyError) else 500
    exchange.hit = None
    exchange.ended = perf_counter()


def finish(reports: Sequence[Callable[[Exchange], None]], exchange: Exchange) -> None:
    """Call each function of `reports` with the exchange, even if an earlier function raises an exception."""
    # A stored response can be large, and the journal keeps the exchange for up to a second.
    exchange.stale_entry = None
    if not exchange.ended and exchange.layer not in ("exact", "semantic"):
        exchange.ended = perf_counter()
    for report in reports:
        try:
            report(exchange)
        except Exception:
            _log.exception("a finished request could not be reported")
