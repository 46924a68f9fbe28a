"""The routes `/tokenize` and `/detokenize` of the embedded engine, in vLLM's format."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.apis import APIS
from kvproxy.apis.api_request import parse_body
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.http.allowed_models import check_model
from kvproxy.http.exchange_middleware import exchange_of
from kvproxy.http.request_bodies import decode_body, read_api_request, read_body
from kvproxy.http.services import services

_MAX_TOKEN = 2**31 - 1
_ALWAYS = ("add_special_tokens", "add_generation_prompt")
"""Fields that the engine's prompts cannot change."""


async def tokenize_prompt(request: Request) -> Response:
    """Return the tokens of `prompt` or `messages`, as a request with them would have."""
    app = services(request)
    engine, worker = app.built.embedded, app.built.worker
    if engine is None or worker is None:
        raise NotFound("this proxy has no engine of its own")
    body = {"model": worker.name, **await _read_body(request)}
    for name in _ALWAYS:
        if body.pop(name, True) is not True:
            raise InvalidRequest(f"{name} must be true: the engine tokenizes all prompts so", param=name)
    api = APIS["completions" if "prompt" in body else "chat"]
    parsed = await read_api_request(request, api, dumps(body), app.tenants, check_fields=True)
    check_model(exchange_of(request.scope).client, parsed.model)
    generation = await engine.generation_request(await app.path.edit(parsed))
    tokens = list(generation.tokens)
    return JSONResponse(
        {"count": len(tokens), "max_model_len": worker.max_model_len, "tokens": tokens, "token_strs": None}
    )


async def detokenize_tokens(request: Request) -> Response:
    """Return the text of `tokens`, with special tokens."""
    worker = services(request).built.worker
    if worker is None:
        raise NotFound("this proxy has no engine of its own")
    given = (await _read_body(request)).get("tokens")
    tokens = [id for id in given if type(id) is int and 0 <= id <= _MAX_TOKEN] if isinstance(given, list) else []
    if not isinstance(given, list) or len(tokens) < len(given):
        raise InvalidRequest("tokens must be a list of token ids", param="tokens")
    text = await worker.async_tokenizer.decode_with_special_tokens(tokens) if tokens else ""
    return JSONResponse({"prompt": text})


async def _read_body(request: Request) -> JsonObject:
    app = services(request)
    limits = app.settings.limits
    with app.bodies.reservation() as reservation:
        raw = await read_body(request, limits.body_bytes, limits.body_seconds, reservation)
        return parse_body(await decode_body(request, raw, limits.body_bytes, reservation))
