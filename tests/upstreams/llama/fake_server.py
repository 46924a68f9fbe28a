"""A fake llama-server with routes and slots. Each letter is a token."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

BYTES_PER_TOKEN = 100
_THRESHOLD = 0.1


@dataclass
class Slot:
    id: int
    tokens: list[int] = field(default_factory=list)
    model: str = ""
    task: int | None = None
    used: int = -1
    busy: bool = False


@dataclass
class File:
    tokens: list[int]
    model: str


def template(messages: list[dict[str, Any]]) -> str:
    return "".join(f"<{each['role']}>{each['content']}\n" for each in messages) + "<assistant>"


def shared(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class Llama:
    def __init__(
        self, slots: int = 2, *, lists_slots: bool = True, saves: bool = True, adapters: Sequence[str] = ()
    ) -> None:
        self.model = "one"
        self.files: dict[str, File] = {}
        self.lists_slots, self.saves, self.adapters = lists_slots, saves, list(adapters)
        self.ignores_restores = False  # Restores succeed, but the next request reuses nothing.
        self.refused_files: set[str] = set()  # Names that cannot be written.
        self.clears_idle = False  # A request clears idle slots.
        self.paused = self.delays_saves = False  # Responses, or saves, wait.
        self.computed = 0  # Number of computed prompt tokens.
        self.bodies: list[bytes] = []  # Received requests.
        self.actions: list[str] = []
        self.errors: list[str] = []  # Uses of a slot or a model that must not happen.
        self.texts = self.concurrent_texts = self.max_concurrent_texts = 0  # Calls of `/detokenize`.
        self.refuses_texts = False  # `/detokenize` fails.
        self.closed: dict[str, set[bool]] = {}  # Whether requests asked to close their connection, by path.
        self._count = slots
        self.restart()
        self.app = Starlette(
            routes=[
                Route("/health", lambda request: Response()),
                Route("/props", self.props),
                Route("/v1/models", self.models),
                Route("/lora-adapters", lambda request: JSONResponse(self.adapters)),
                Route("/slots", self.list_slots),
                Route("/slots/{id:int}", self.act, methods=["POST"]),
                Route("/apply-template", self.apply, methods=["POST"]),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.chat, methods=["POST"]),
            ]
        )

    def restart(self, model: str | None = None) -> None:
        """Restart with empty slots; files remain."""
        self.model = model or self.model
        self.slots = [Slot(at) for at in range(self._count)]
        self._task = 0

    async def props(self, request: Request) -> Response:
        props = {"default_generation_settings": {}, "total_slots": self._count, "build_info": "b1"}
        return JSONResponse(props | {"model_path": f"/models/{self.model}.gguf"})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "m", "meta": {"n_params": 1}}]})

    async def list_slots(self, request: Request) -> Response:
        if not self.lists_slots:
            return JSONResponse(
                {"error": {"code": 501, "message": "This server does not support slots endpoint."}}, 501
            )
        rows = []
        for slot in self.slots:
            row: dict[str, Any] = {"id": slot.id, "n_ctx": 100_000, "is_processing": slot.busy}
            if slot.task is not None:
                row |= {"id_task": slot.task, "n_prompt_tokens": len(slot.tokens)}
            rows.append(row)
        return JSONResponse(rows)

    async def act(self, request: Request) -> Response:
        action, slot = request.query_params["action"], self.slots[request.path_params["id"] % self._count]
        if not self.saves:
            return JSONResponse({"error": {"code": 501, "message": "This server does not support slots action."}}, 501)
        if action == "none":
            return JSONResponse({"error": {"code": 400, "message": "Invalid action"}}, 400)
        if slot.busy:
            self.errors.append(f"{action} of slot {slot.id}, which is in use")
        while slot.busy:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self._task += 1
        self.actions.append(f"{action} {slot.id}")
        if action == "erase":
            erased, slot.tokens = len(slot.tokens), []
            return JSONResponse({"id_slot": slot.id, "n_erased": erased})
        name = (await request.json())["filename"]
        if action == "save":
            while self.delays_saves:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            if name in self.refused_files:
                return JSONResponse({"error": {"code": 500, "message": "Unable to save slot"}}, 500)
            self.files[name] = File(list(slot.tokens), slot.model)
            size = 52 + BYTES_PER_TOKEN * len(slot.tokens)
            return JSONResponse({"filename": name, "n_saved": len(slot.tokens), "n_written": size})
        if name not in self.files:
            slot.tokens = []
            return JSONResponse({"error": {"code": 400, "message": "Unable to restore slot"}}, 400)
        file = self.files[name]
        slot.tokens, slot.model = list(file.tokens), file.model
        if file.tokens and file.model != self.model:
            self.errors.append(f"slot {slot.id} has keys of {file.model} under {self.model}")
        return JSONResponse({"filename": name, "n_restored": len(slot.tokens), "n_read": 52})

    async def apply(self, request: Request) -> Response:
        return JSONResponse({"prompt": template((await request.json())["messages"])})

    async def tokenize(self, request: Request) -> Response:
        return JSONResponse({"tokens": [ord(each) for each in (await request.json())["content"]]})

    async def detokenize(self, request: Request) -> Response:
        self._record_connection(request)
        self.texts += 1
        self.concurrent_texts += 1
        self.max_concurrent_texts = max(self.max_concurrent_texts, self.concurrent_texts)
        tokens = (await request.json())["tokens"]
        await asyncio.sleep(0.01)
        self.concurrent_texts -= 1
        if self.refuses_texts:
            return JSONResponse({"error": {"code": 500, "message": "out of memory"}}, 500)
        return JSONResponse({"content": "".join(map(chr, tokens))})

    def _record_connection(self, request: Request) -> None:
        closes = request.headers.get("connection") == "close"
        self.closed.setdefault(request.url.path, set()).add(closes)

    def _slot(self, wanted: int, prompt: list[int]) -> Slot | None:
        """Choose a slot as llama-server does: the longest prefix above a threshold, else the least recently used."""
        if wanted >= 0:
            slot = self.slots[wanted % self._count]
            return None if slot.busy else slot
        free = [slot for slot in self.slots if not slot.busy]
        alike = [slot for slot in free if shared(slot.tokens, prompt) > _THRESHOLD * len(prompt)]
        if alike:
            return max(alike, key=lambda slot: shared(slot.tokens, prompt))
        return min(free, key=lambda slot: slot.used) if free else None

    async def chat(self, request: Request) -> Response:
        self._record_connection(request)
        raw = await request.body()
        self.bodies.append(raw)
        body = orjson.loads(raw)
        prompt = [ord(each) for each in body.get("prompt") or template(body["messages"])]
        wanted = body.get("id_slot")
        while (slot := self._slot(-1 if wanted is None else wanted, prompt)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self._task += 1
        slot.busy, slot.task = True, self._task
        if self.clears_idle:
            for other in self.slots:
                if other is not slot and not other.busy:
                    other.tokens = []
        reused = min(shared(slot.tokens, prompt), len(prompt) - 1) if body.get("cache_prompt", True) else 0
        if self.ignores_restores and self.actions[-1:] == [f"restore {slot.id}"]:
            reused = 0
        if reused and slot.model != self.model:
            self.errors.append(f"slot {slot.id} was reused under another model")
        self.computed += len(prompt) - reused
        slot.tokens, slot.model = list(prompt), self.model
        text = body.get("answer") or f"answer {sum(prompt) % 997}"
        timings = {"cache_n": reused, "prompt_n": len(prompt) - reused}
        if body.get("stream"):
            return StreamingResponse(self._events(slot, text, timings), media_type="text/event-stream")
        try:
            await self._wait_while_paused()
            self._end(slot, text)
        finally:
            slot.busy = False
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": reused}}
        message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}, "text": text}
        whole = {"id": "x", "object": "chat.completion", "model": "m", "choices": [message], "usage": usage}
        return JSONResponse(whole | {"timings": timings})

    async def _wait_while_paused(self) -> None:
        while self.paused:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def _end(self, slot: Slot, text: str) -> None:
        # The last token of a response is never computed.
        slot.tokens += [ord(each) for each in text]
        self._task += 1
        slot.used = self._task

    async def _events(self, slot: Slot, text: str, timings: dict[str, int]) -> AsyncIterator[bytes]:
        try:
            for word in text:
                await self._wait_while_paused()
                self._end(slot, word)
                yield _chunk({"choices": [{"index": 0, "delta": {"content": word}}]})
            yield _chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "timings": timings})
            yield b"data: [DONE]\n\n"
        finally:
            slot.busy = False


def _chunk(fields: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps({"id": "x", "object": "chat.completion.chunk", "model": "m"} | fields) + b"\n\n"
