"""Layers that change when the rest runs: renewal after a stale hit, and cancellation at a disconnect."""

from kvproxy.exchange import Answer, Exchange
from kvproxy.flow.answer import Answerer
from kvproxy.flow.layers.layer import Prediction, Rest


class Renewal:
    """Renews a stale response in the background after it was served."""

    def __init__(self, parts: Answerer) -> None:
        self._revalidator = parts.revalidator

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        answer = await rest(exchange)
        self._revalidator.begin(exchange)
        return answer

    async def predict(self, exchange: Exchange) -> Prediction | None:
        return None


class UntilDisconnect:
    """Cancels the rest when the client disconnects or its deadline passes. An exact hit is faster than this check."""

    def __init__(self, parts: Answerer) -> None: ...

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        return await (rest(exchange) if exchange.watch is None else exchange.watch(rest(exchange)))

    async def predict(self, exchange: Exchange) -> Prediction | None:
        return None
