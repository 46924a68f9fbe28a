"""An OpenAI-compatible server with the demonstration model, in a thread, for `kvproxy serve --demo`."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from kvproxy.demo import DEMO, verified_model_path
from kvproxy.demo.numpy_model import Generation, NumpyModel

_DEFAULT_TOKENS = 256
# It always returns the most probable answer, so sampling settings have no effect.
_FIELDS = frozenset(
    "model messages stream stream_options max_tokens max_completion_tokens temperature top_p seed user metadata store"
    " prompt_cache_key".split()
)
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # The tokens so far end within a character.


class _InvalidRequest(Exception):
    pass


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
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        row = {"id": DEMO, "object": "model", "created": self._started, "owned_by": "kvproxy"}
        return JSONResponse({"object": "list", "data": [row]})

    async def _chat(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            prompt, max_tokens = self._read(body)
        except (ValueError, AttributeError, TypeError, KeyError, _InvalidRequest) as error:
            message = str(error) if isinstance(error, _InvalidRequest) else "the body is not a valid chat completion"
            return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, 400)
        head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": DEMO}
        if body.get("stream"):
            with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(
                self._events(head, prompt, max_tokens, with_usage=with_usage), media_type="text/event-stream"
            )
        parts = [part async for part in self._generate(prompt, max_tokens)]
        text, (_, reason, usage) = "".join(part for part, _, _ in parts), parts[-1]
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        return JSONResponse(head | {"object": "chat.completion", "choices": [choice], "usage": usage})

    def _read(self, body: Mapping[str, Any]) -> tuple[list[int], int]:
        """Return the tokens of the prompt, and the maximum number of tokens of the answer."""
        if unknown := sorted(name for name, value in body.items() if name not in _FIELDS and value is not None):
            raise _InvalidRequest(f"the demonstration has no {', '.join(unknown)}: remove it, or serve another model")
        turns = [f"<|{_ROLES[message['role']]}|>{_text(message['content'])}<|end|>" for message in body["messages"]]
        prompt: list[int] = self._tokenizer.encode(f"{''.join(turns)}<|assistant|>", add_special_tokens=False).ids
        if len(prompt) >= self._model.max_positions:
            raise _InvalidRequest(
                f"the prompt has {len(prompt):,} tokens, of at most {self._model.max_positions - 1:,}"
            )
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or _DEFAULT_TOKENS
        return prompt, max(1, int(wanted))

    async def _events(
        self, head: dict[str, Any], prompt: list[int], max_tokens: int, *, with_usage: bool
    ) -> AsyncIterator[bytes]:
        head = head | {"object": "chat.completion.chunk"}
        usage: dict[str, Any] = {}
        delta: dict[str, Any] = {"role": "assistant", "content": ""}
        yield _event(head, [{"index": 0, "delta": delta, "finish_reason": None}])
        async for part, reason, usage_so_far in self._generate(prompt, max_tokens):
            usage, delta = usage_so_far, {"content": part} if part else {}
            yield _event(head, [{"index": 0, "delta": delta, "finish_reason": reason}])
        if with_usage:
            yield _event(head | {"usage": usage}, [])
        yield b"data: [DONE]\n\n"

    async def _generate(
        self, prompt: list[int], max_tokens: int
    ) -> AsyncIterator[tuple[str, str | None, dict[str, Any]]]:
        """Yield parts of the answer; the last one is empty, with the finish reason and the usage."""
        async with self._lock:
            generation = await asyncio.to_thread(self._model.generate, prompt, max_tokens)
            tokens: list[int] = []
            sent = ""
            while (token := await asyncio.to_thread(next, generation.tokens, None)) is not None:
                tokens.append(token)
                text = self._tokenizer.decode(tokens)
                if not text.endswith(_UNFINISHED):
                    yield text[len(sent) :], None, {}
                    sent = text
            yield "", "length" if len(tokens) == max_tokens else "stop", _usage(generation, len(tokens))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _usage(generation: Generation, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": generation.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": generation.reused_tokens},
    }


def _event(head: Mapping[str, Any], choices: list[dict[str, Any]]) -> bytes:
    return b"data: " + json.dumps({**head, "choices": choices}).encode() + b"\n\n"


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
