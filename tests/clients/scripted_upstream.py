"""A server with the APIs of Anthropic and OpenAI, which answers by a script and has no model."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.clients import anthropic_api, openai_api
from tests.clients.agent_script import Script, look_up_the_word
from tests.clients.anthropic_api import AnthropicApi
from tests.clients.openai_api import OpenAIApi
from tests.servers import run_app


@dataclass(slots=True)
class Exchange:
    """A request and its response, as bytes on one side of a proxy."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    response_headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    chunks: int = 0


class ExchangeRecorder:
    """ASGI middleware that records all exchanges of an app."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.exchanges: list[Exchange] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        query = scope["query_string"].decode()
        exchange = Exchange(scope["method"], scope["path"] + (f"?{query}" if query else ""), _decoded(scope), b"")
        self.exchanges.append(exchange)

        async def receive_and_record() -> Message:
            message = await receive()
            exchange.body += message.get("body", b"")
            return message

        async def send_and_record(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status, exchange.response_headers = message["status"], _decoded(message)
            elif message.get("body"):
                exchange.content += message["body"]
                exchange.chunks += 1
            await send(message)

        await self.app(scope, receive_and_record, send_and_record)


def _decoded(holder: Scope | Message) -> dict[str, str]:
    return {name.decode().lower(): value.decode("latin-1") for name, value in holder["headers"]}


class ScriptedUpstream:
    """The APIs of both providers, with one script.

    Attributes:
        exchanges: all requests and responses.
    """

    def __init__(self, script: Script = look_up_the_word, pause: float = 0.0) -> None:
        """`pause` is the time in seconds after the first event of each stream."""
        self.anthropic = AnthropicApi(script, pause)
        self.openai = OpenAIApi(script, pause)
        self.exchanges: list[Exchange] = []

    @contextlib.contextmanager
    def run(self) -> Iterator[str]:
        """Serve on a free port; yield the URL."""
        app = Starlette()
        app.add_route("/{path:path}", self.answer, methods=["GET", "POST", "DELETE", "HEAD"])
        recorder = ExchangeRecorder(app)
        self.exchanges = recorder.exchanges
        with run_app(recorder) as url:
            yield url

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        if path.startswith("/v1/messages"):
            return await self.anthropic.answer(request)
        if path == "/v1/models":
            return _models(request)
        return await self.openai.answer(request)

    @property
    def errors(self) -> list[str]:
        """Messages of the refused requests of both providers."""
        return [*self.anthropic.errors, *self.openai.errors]


def _models(request: Request) -> Response:
    if "anthropic-version" in request.headers:
        data = [
            {"type": "model", "id": name, "display_name": name, "created_at": "2026-06-01T00:00:00Z"}
            for name in anthropic_api.MODELS
        ]
        return JSONResponse({"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]})
    models = [
        {"id": name, "object": "model", "created": openai_api.CREATED, "owned_by": "openai"}
        for name in openai_api.MODELS
    ]
    return JSONResponse({"object": "list", "data": models})
