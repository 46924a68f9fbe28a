"""Answers fixed questions without a model. `explain` predicts it, because it asks `predict`."""

from kvproxy.apis.json import JsonObject
from kvproxy.exchange import Answer, Exchange
from kvproxy.flow.layers.layer import Layer, PathContext, Prediction, Rest, answer_with

ANSWERS = {"What are your opening hours?": "We are open from 9 to 5."}


class Faq(Layer):
    def __init__(self, context: PathContext) -> None:
        super().__init__()

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        text = self._find(exchange)
        if text is None:
            return await rest(exchange)
        message: JsonObject = {"role": "assistant", "content": text}
        response: JsonObject = {
            "id": exchange.request_id,
            "object": "chat.completion",
            "created": int(exchange.arrived),
            "model": exchange.api_request.model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        return answer_with(exchange.api_request, response)

    async def predict(self, exchange: Exchange) -> Prediction | None:
        return None if self._find(exchange) is None else Prediction("plugin")

    def _find(self, exchange: Exchange) -> str | None:
        request = exchange.api_request
        return ANSWERS.get(request.api.display_text(request.body)) if request.api.name == "chat" else None
