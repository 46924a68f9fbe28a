"""Records the failure that ended an exchange."""

from time import perf_counter

from kvproxy.errors import KvproxyError
from kvproxy.exchange import Exchange
from kvproxy.journal.reasons import reason_of_failure

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected before the response.


def record_failure(exchange: Exchange, error: BaseException) -> None:
    exchange.failure = reason_of_failure(error)
    if exchange.failure.startswith("disconnected"):
        exchange.layer, exchange.status = "disconnected", CLIENT_CLOSED_REQUEST
    else:
        exchange.layer = "error" if exchange.failure.startswith("error") else "refused"
        exchange.status = error.status if isinstance(error, KvproxyError) else 500
        exchange.reached_limit = error.reached_limit if isinstance(error, KvproxyError) else None
    exchange.hit = None
    exchange.ended = perf_counter()
