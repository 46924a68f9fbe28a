"""Calls the routes of llama-server on its slots and tokens."""

import asyncio
import hashlib
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs.codec import Conversation
from kvproxy.apis.json import Json, JsonMap, JsonObject, dumps, field, objects
from kvproxy.errors import UpstreamError, UpstreamTimeout, UpstreamUnreachable
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.prompt_tokenizer import prompt_input

Tokens: TypeAlias = "array[int]"
"""Token ids as an array, because each request is compared with many slots and files."""
_SECONDS = 2.0  # Older servers do not respond while they compute a batch.
_FILE_SECONDS = 60.0  # A slot may have gigabytes.
# Each connection, also an idle one, occupies one of the few threads of the server.
_TEXT_CONNECTIONS = 2
MAX_TEXTS, MAX_TEXT_TOKENS = 1_024, 64
"""Texts that are kept, and the maximum tokens of each."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A llama-server. `identity` is a digest of its model and build; only servers with equal identities can share slot files."""

    identity: str
    slots: int
    lists_slots: bool
    saves_slots: bool
    has_adapters: bool


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot in the server's report. `task` is the server's id of the last request in the slot, if any."""

    slot: int
    busy: bool
    task: int | None
    tokens: int
    context: int


class LlamaClient:
    """Calls one llama-server. Every method raises UpstreamError on a timeout or an unexpected response."""

    def __init__(self, client: UpstreamClient) -> None:
        self._client = client
        self._text_connections = asyncio.Semaphore(_TEXT_CONNECTIONS)
        self._texts: dict[bytes, str] = {}  # By the bytes of the tokens, least recently used first.

    async def server_info(self) -> ServerInfo | None:
        """Return the server's properties; None if the server is not llama.cpp."""
        identity, props = await self.identity_and_properties()
        slots = field(props, "total_slots")
        if identity is None or not isinstance(slots, int):
            return None
        status, adapters = await self._call("GET", "/lora-adapters", seconds=_FILE_SECONDS)
        lists_slots = (await self._call("GET", "/slots"))[0] == 200
        # Without a folder, the server rejects any action with 501; with one, an unknown action with 400.
        saves_slots = (await self._call("POST", "/slots/0?action=none", {}))[0] == 400
        return ServerInfo(identity, slots, lists_slots, saves_slots, status == 200 and bool(adapters))

    async def identity_and_properties(self) -> tuple[str | None, Json]:
        """Return a digest of the server's model and build (None if it is not llama.cpp), and the response of `/props`."""
        _, props = await self._call("GET", "/props")
        if field(props, "default_generation_settings") is None:
            return None, props
        _, models = await self._call("GET", "/v1/models")
        meta = field(next(iter(objects(field(models, "data"))), None), "meta")
        parts = [field(props, name) for name in ("model_path", "model_alias", "model_ftype", "build_info")]
        parts += [field(meta, name) for name in ("n_vocab", "n_embd", "n_params", "size", "n_ctx_train")]
        return hashlib.sha256(dumps(parts)).hexdigest(), props

    async def slots(self) -> list[SlotState]:
        status, data = await self._call("GET", "/slots")
        if status != 200:
            raise UpstreamUnreachable(f"{self._client.url} answered {status} to /slots")
        return [
            SlotState(
                _read_number(slot, "id"),
                bool(slot.get("is_processing")),
                _read_number(slot, "id_task") if "id_task" in slot else None,
                _read_number(slot, "n_prompt_tokens"),
                _read_number(slot, "n_ctx"),
            )
            for slot in objects(data)
        ]

    async def tokenize_request(self, request: ApiRequest) -> Tokens:
        """Apply the chat template, and tokenize the prompt. Raises InvalidRequest if the prompt is not text."""
        source = prompt_input(request)
        if isinstance(source, tuple):
            return array("i", source)
        if isinstance(source, Conversation):
            # Any field may affect the chat template.
            body = request.body if request.api.name == "chat" else source.chat_fields()
            reply = await self._post_text("/apply-template", {**body, "stream": False})
            source = str(field(reply, "prompt") or "")
        return await self.tokenize(source, special=True)

    async def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        """Tokenize a text. `special` adds the special tokens with which a prompt begins."""
        reply = await self._post_text("/tokenize", {"content": text, "add_special": special, "parse_special": True})
        ids = field(reply, "tokens")
        try:
            return array("i", [id for id in ids if isinstance(id, int)] if isinstance(ids, list) else [])
        except OverflowError:
            raise UpstreamUnreachable(f"the response of {self._client.url}/tokenize is not valid") from None

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; the text of few tokens is kept."""
        key = array("i", tokens).tobytes()
        text = self._texts.pop(key, None)
        if text is None:
            reply = await self._post_text("/detokenize", {"tokens": list[Json](tokens)})
            text = str(field(reply, "content") or "")
        if len(tokens) > MAX_TEXT_TOKENS:
            return text
        self._texts[key] = text
        if len(self._texts) > MAX_TEXTS:
            del self._texts[next(iter(self._texts))]
        return text

    def forget_texts(self) -> None:
        """Forget the texts of tokens, because another model may have other tokens."""
        self._texts.clear()

    async def save_slot(self, slot: int, name: str) -> tuple[int, int]:
        """Write a slot to a file; return the numbers of tokens and bytes."""
        reply = await self._post(f"/slots/{slot}?action=save", {"filename": name}, _FILE_SECONDS)
        return _read_number(reply, "n_saved"), _read_number(reply, "n_written")

    async def restore_slot(self, slot: int, name: str) -> int:
        """Read a file into a slot, and return the number of tokens; a failure clears the slot."""
        reply = await self._post(f"/slots/{slot}?action=restore", {"filename": name}, _FILE_SECONDS)
        return _read_number(reply, "n_restored")

    async def erase_slot(self, slot: int) -> None:
        await self._post(f"/slots/{slot}?action=erase", {}, _FILE_SECONDS)

    async def _post_text(self, path: str, body: JsonMap) -> JsonObject:
        async with self._text_connection(path):
            return await self._post(path, body)

    @asynccontextmanager
    async def _text_connection(self, path: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_SECONDS):
                await self._text_connections.acquire()
        except TimeoutError:
            raise UpstreamTimeout(f"{self._client.url}{path} is busy with earlier requests") from None
        try:
            yield
        finally:
            self._text_connections.release()

    async def _post(self, path: str, body: JsonMap, seconds: float = _SECONDS) -> JsonObject:
        status, reply = await self._call("POST", path, body, seconds)
        if status != 200 or not isinstance(reply, dict):
            message = field(field(reply, "error"), "message") or f"it answered {status}"
            raise LlamaRequestRefused(f"{self._client.url}{path.partition('?')[0]}: {message}")
        return reply

    async def _call(
        self, method: str, path: str, body: JsonMap | None = None, seconds: float = _SECONDS
    ) -> tuple[int, Json]:
        return await self._client.call_json(method, path, body, seconds=seconds, queued=False)


class LlamaRequestRefused(UpstreamError):
    status = 502


def _read_number(reply: JsonMap, name: str) -> int:
    value = reply.get(name)
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0
