"""A server of the APIs of OpenAI and Anthropic with the demonstration model, in a thread, for `kvproxy serve --demo`."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from kvproxy.apis import APIS, MESSAGES, is_messages_path
from kvproxy.apis.api import Api, openai_error
from kvproxy.apis.api_request import PUBLIC_TENANT, ApiRequest
from kvproxy.apis.codecs import CODECS
from kvproxy.apis.codecs.codec import Conversation, ResponseEncoder
from kvproxy.apis.codecs.generation import Delta, FinishReason, SamplingParams, ToolCall, Usage
from kvproxy.apis.json import JsonObject, as_object, loads
from kvproxy.apis.messages import anthropic_error
from kvproxy.demo import DEMO, REUSE_PATH, verified_model_path
from kvproxy.demo.numpy_model import NumpyModel
from kvproxy.demo.tool_calls import required_call
from kvproxy.errors import InvalidRequest, KvproxyError, NotFound

# It always returns the most probable answer, so sampling settings have no effect.
_DEFAULTS = SamplingParams(max_tokens=256)
_APIS = ("chat", "messages", "responses")
_FIELDS = frozenset(
    "model messages stream stream_options max_tokens max_completion_tokens temperature top_p top_k seed user metadata store"
    " prompt_cache_key system input instructions max_output_tokens tools tool_choice parallel_tool_calls".split()
)
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "user"}
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # The tokens so far end within a character.


class DemoUpstream:
    """The routes of the server. One request is computed at a time."""

    def __init__(self) -> None:
        folder = verified_model_path()
        self._model = NumpyModel(folder)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._lock = asyncio.Lock()
        self._started = int(time.time())
        self.app = Starlette(
            routes=[
                Route("/health", lambda request: Response()),
                Route("/v1/models", self._models),
                *(Route(APIS[name].path, self._answer, methods=["POST"]) for name in _APIS),
                *(Route(f"{APIS[name].path}{REUSE_PATH}", self._reuse, methods=["POST"]) for name in _APIS),
                Route(f"{MESSAGES.path}/count_tokens", self._count_tokens, methods=["POST"]),
                Route("/{path:path}", _refuse_route, methods=["GET", "POST", "DELETE"]),
            ],
            exception_handlers={KvproxyError: _refuse},
        )

    async def _models(self, request: Request) -> Response:
        row = {"id": DEMO, "object": "model", "created": self._started, "owned_by": "kvproxy"}
        return JSONResponse({"object": "list", "data": [row]})

    async def _answer(self, request: Request) -> Response:
        api = next(APIS[name] for name in _APIS if APIS[name].path == request.url.path)
        asked = await _read(request, api)
        prompt, max_tokens, call = self._decode(asked)
        encoder = CODECS[api.name].encoder(asked, DEMO, None)
        if asked.stream:
            return StreamingResponse(self._events(encoder, prompt, max_tokens, call), media_type="text/event-stream")
        async for piece in self._generate(prompt, max_tokens, call):
            for _ in encoder.write(piece):
                pass
        return JSONResponse(encoder.response())

    async def _count_tokens(self, request: Request) -> Response:
        asked = await _read(request, MESSAGES)
        prompt, *_ = self._decode(asked.with_body(asked.body | {"max_tokens": 1}))
        return JSONResponse({"input_tokens": len(prompt)})

    async def _reuse(self, request: Request) -> Response:
        path = request.url.path.removesuffix(REUSE_PATH)
        asked = await _read(request, next(APIS[name] for name in _APIS if APIS[name].path == path))
        prompt, _, call = self._decode(asked.with_body({"max_tokens": 1} | asked.body))
        async with self._lock:
            # A required call needs no model.
            reused = 0 if call is not None else self._model.reusable_tokens(prompt)
        return JSONResponse({"prompt_tokens": len(prompt), "reused_tokens": reused})

    def _decode(self, request: ApiRequest) -> tuple[list[int], int, ToolCall | None]:
        """Return the tokens of the prompt, the maximum number of tokens of the answer, and the required call of a tool.

        The model does not read the tools. Raises InvalidRequest.
        """
        given = request.body.items()
        if unknown := sorted(name for name, value in given if name not in _FIELDS and value not in (None, [], {})):
            raise InvalidRequest(
                f"the demonstration model does not support {', '.join(unknown)}: send the request without, or serve another model"
            )
        request.api.check(request.body)
        decoded = CODECS[request.api.name].decode(request.body, _DEFAULTS)
        assert isinstance(decoded.prompt, Conversation)
        turns = "".join(map(_turn, decoded.prompt.messages))
        prompt: list[int] = self._tokenizer.encode(f"{turns}<|assistant|>", add_special_tokens=False).ids
        if len(prompt) >= self._model.max_positions:
            raise InvalidRequest(f"the prompt has {len(prompt):,} tokens, of at most {self._model.max_positions - 1:,}")
        call = required_call(decoded.tools, decoded.prompt.messages)
        return prompt, max(1, decoded.sampling.max_tokens or 0), call

    async def _events(
        self, encoder: ResponseEncoder, prompt: Sequence[int], max_tokens: int, call: ToolCall | None
    ) -> AsyncIterator[bytes]:
        async for piece in self._generate(prompt, max_tokens, call):
            for event in encoder.write(piece):
                yield event
        for event in encoder.end():
            yield event

    async def _generate(self, prompt: Sequence[int], max_tokens: int, call: ToolCall | None) -> AsyncIterator[Delta]:
        """Yield the parts of the answer: the call, or a text; the last one has the finish reason."""
        if call is not None:
            written = len(self._tokenizer.encode(f"{call.name} {call.arguments}", add_special_tokens=False).ids)
            yield Delta(0, "", (), (), "stop", Usage(len(prompt), written, 0), calls=(call,))
            return
        async with self._lock:
            generation = await asyncio.to_thread(self._model.generate, prompt, max_tokens)
            tokens: list[int] = []
            sent = ""

            def part(text: str, reason: FinishReason | None = None) -> Delta:
                usage = Usage(generation.prompt_tokens, len(tokens), generation.reused_tokens)
                return Delta(0, text, (), (), reason, usage)

            while (token := await asyncio.to_thread(next, generation.tokens, None)) is not None:
                tokens.append(token)
                text = self._tokenizer.decode(tokens)
                if not text.endswith(_UNFINISHED):
                    yield part(text[len(sent) :])
                    sent = text
            yield part("", "length" if len(tokens) == max_tokens else "stop")


async def _read(request: Request, api: Api) -> ApiRequest:
    raw = await request.body()
    try:
        body = as_object(loads(raw))
    except ValueError:
        raise InvalidRequest("the body is not a JSON object") from None
    return ApiRequest(api, body, raw, request.headers, PUBLIC_TENANT, uuid4().hex)


def _turn(message: JsonObject) -> str:
    role = message.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f"the demonstration has no role {str(role)[:40]!r}: use {', '.join(_ROLES)}")
    return f"<|{_ROLES[str(role)]}|>{_readable(message.get('content') or '')}<|end|>"


def _readable(text: object) -> object:
    """Return a text in capitals in sentence case, because the model was not trained on capitals."""
    return text.capitalize() if isinstance(text, str) and text.isupper() and " " in text else text


async def _refuse_route(request: Request) -> Response:
    paths = ", ".join(APIS[name].path for name in _APIS)
    raise NotFound(f"the demonstration answers {paths} only: serve another model with --upstream")


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, KvproxyError)
    body = anthropic_error(error) if is_messages_path(request.url.path) else openai_error(error)
    return JSONResponse(body, error.status)


@contextlib.contextmanager
def run_demo_upstream() -> Iterator[str]:
    """Run the server on a free port of the loopback interface; yield its URL. Raises ModelUnsupported."""
    config = uvicorn.Config(DemoUpstream().app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="demo", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
