"""Keeps the models of Ollama loaded for an hour after each request; by default, Ollama unloads them after five minutes."""

from dataclasses import replace

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.upstreams.kind import PlacedRequest, UpstreamKind


class Ollama(UpstreamKind):
    async def place(self, request: ApiRequest) -> PlacedRequest | None:
        if "keep_alive" in request.body:
            return None
        body: JsonObject = {**request.body, "keep_alive": "1h"}
        return PlacedRequest(replace(request, body=body, raw=dumps(body)))

    def advice(self) -> list[str]:
        return ["models stay loaded for an hour: set OLLAMA_MAX_LOADED_MODELS if memory is short"]
