"""Records the failure that ended an exchange."""

from time import perf_counter

from kvproxy.errors import KvproxyError
from kvproxy.exchange import Exchange
from kvproxy.journal.reasons import layer_of_failure, reason_of_failure

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected before the response.


def record_failure(exchange: Exchange, error: BaseException) -> None:
    exchange.failure = reason_of_failure(error)
    exchange.layer = layer_of_failure(exchange.failure)
    if isinstance(error, KvproxyError):
        exchange.status, exchange.reached_limit = error.status, error.reached_limit
    else:
        exchange.status = CLIENT_CLOSED_REQUEST if exchange.layer == "disconnected" else 500
        exchange.reached_limit = None
    exchange.hit = None
    exchange.ended = perf_counter()
