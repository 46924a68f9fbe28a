"""llama-server's own routes, typed."""

import asyncio
import hashlib
from dataclasses import dataclass

import orjson

from kvproxy.apis.codecs.codec import Conversation
from kvproxy.apis.json import Json, JsonMap, JsonObject, field, loads, objects
from kvproxy.apis.request import ApiRequest
from kvproxy.errors import UpstreamError, UpstreamTimeout, UpstreamUnreachable
from kvproxy.upstreams.client import Upstream
from kvproxy.upstreams.llama.packed_tokens import Tokens, pack, unpack
from kvproxy.upstreams.prompt_tokenizer import prompt_form

_SECONDS = 2.0
"""How long a question about slots or tokens may take: it holds up a request. Older servers answer between two batches only."""
_FILE_SECONDS = 60.0
"""How long a slot may be read or written: long prompts on large models make files of gigabytes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of itself.

    Attributes:
        identity: a digest of its model and build; what is saved under one identity is of no use under another.
        slots: how many it has.
        told: whether it has `/slots`.
        saves: whether it has a folder for slots.
        adapters: whether it has LoRA adapters.
    """

    identity: str
    slots: int
    told: bool
    saves: bool
    adapters: bool


@dataclass(frozen=True, slots=True)
class SlotState:
    """One slot, as `/slots` tells.

    Attributes:
        busy: whether a request uses it.
        task: number of its last request since the server's start; None where it has had none.
        tokens: how many it holds.
        context: how many it can hold.
    """

    slot: int
    busy: bool
    task: int | None
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class Written:
    """A slot that was saved or restored: its tokens, and the file's bytes."""

    tokens: int
    size: int


class LlamaRoutes:
    """Asks one llama-server.

    Every method raises an UpstreamError where the server gives no answer in time, or not the one that is expected.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def facts(self) -> Facts | None:
        """What the server says of itself; None where it is no llama.cpp."""
        _, props = await self._call("GET", "/props")
        identity, slots = await self._identity(props), field(props, "total_slots")
        if identity is None or not isinstance(slots, int):
            return None
        status, adapters = await self._call("GET", "/lora-adapters", seconds=_FILE_SECONDS)
        told = (await self._call("GET", "/slots"))[0] == 200
        # Without a folder it refuses any action with 501, with one only an action that there is not.
        saves = (await self._call("POST", "/slots/0?action=none", {}))[0] == 400
        return Facts(identity, slots, told, saves, status == 200 and bool(adapters))

    async def identity(self) -> str | None:
        """The digest of its model and build, as it is now; it answers this at once, whatever it computes."""
        return await self._identity((await self._call("GET", "/props"))[1])

    async def _identity(self, props: Json) -> str | None:
        if field(props, "default_generation_settings") is None:
            return None
        _, models = await self._call("GET", "/v1/models")
        meta = field(next(iter(objects(field(models, "data"))), None), "meta")
        said = [field(props, name) for name in ("model_path", "model_alias", "model_ftype", "build_info")]
        said += [field(meta, name) for name in ("n_vocab", "n_embd", "n_params", "size", "n_ctx_train")]
        return hashlib.sha256(orjson.dumps(said)).hexdigest()

    async def slots(self) -> list[SlotState]:
        """All slots."""
        status, said = await self._call("GET", "/slots")
        if status != 200:
            raise UpstreamUnreachable(f"{self._upstream.url} answered /slots with {status}")
        return [
            SlotState(
                _number(each, "id"),
                bool(each.get("is_processing")),
                _number(each, "id_task") if "id_task" in each else None,
                _number(each, "n_prompt_tokens"),
                _number(each, "n_ctx"),
            )
            for each in objects(said)
        ]

    async def prompt(self, request: ApiRequest) -> Tokens:
        """A request's prompt as the server will read it; raises InvalidRequest where it has none that is text."""
        form = prompt_form(request)
        if isinstance(form, tuple):
            return pack(form)
        if isinstance(form, Conversation):
            # All fields of a chat may change what the template makes of it; another API's are those of a chat here.
            body = request.body if request.api.name == "chat" else _conversation(form)
            said = await self._asked("/apply-template", {**body, "stream": False})
            form = str(field(said, "prompt") or "")
        return await self.tokenize(form, special=True)

    async def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        """A text's tokens; with `special`, those that begin a prompt too."""
        said = await self._asked("/tokenize", {"content": text, "add_special": special, "parse_special": True})
        ids = field(said, "tokens")
        try:
            return pack([id for id in ids if isinstance(id, int)] if isinstance(ids, list) else [])
        except OverflowError:
            raise UpstreamUnreachable(f"{self._upstream.url} answered /tokenize with something else") from None

    async def text(self, tokens: Tokens) -> str:
        """The text of tokens."""
        return str(field(await self._asked("/detokenize", {"tokens": list[Json](unpack(tokens))}), "content") or "")

    async def save(self, slot: int, name: str) -> Written:
        """Write a slot to a file in the server's `--slot-save-path`."""
        return await self._file(slot, "save", name, "n_saved", "n_written")

    async def restore(self, slot: int, name: str) -> Written:
        """Read a file into a slot. Whatever comes of it, what the slot held is gone."""
        return await self._file(slot, "restore", name, "n_restored", "n_read")

    async def erase(self, slot: int) -> None:
        """Empty a slot."""
        await self._asked(f"/slots/{slot}?action=erase", {}, _FILE_SECONDS)

    async def _file(self, slot: int, action: str, name: str, tokens: str, size: str) -> Written:
        said = await self._asked(f"/slots/{slot}?action={action}", {"filename": name}, _FILE_SECONDS)
        return Written(_number(said, tokens), _number(said, size))

    async def _asked(self, path: str, body: JsonMap, seconds: float = _SECONDS) -> JsonObject:
        status, said = await self._call("POST", path, body, seconds)
        if status != 200 or not isinstance(said, dict):
            message = field(field(said, "error"), "message") or f"it answered {status}"
            raise SlotRefused(f"{self._upstream.url}{path.partition('?')[0]}: {message}")
        return said

    async def _call(
        self, method: str, path: str, body: JsonMap | None = None, seconds: float = _SECONDS
    ) -> tuple[int, Json]:
        try:
            async with asyncio.timeout(seconds):
                headers = {} if body is None else {"content-type": "application/json"}
                reply = await self._upstream.aside(method, path, headers, b"" if body is None else orjson.dumps(body))
                data = await reply.body()
        except TimeoutError:
            raise UpstreamTimeout(
                f"{self._upstream.url} gave no answer to {path.partition('?')[0]} in {seconds:g} s"
            ) from None
        try:
            return reply.status, loads(data)
        except ValueError:
            return reply.status, None


class SlotRefused(UpstreamError):
    """llama-server understood, and did not do it."""

    status = 502


def _conversation(form: Conversation) -> JsonObject:
    body: JsonObject = {"messages": list[Json](form.messages)}
    if form.tools:
        body["tools"] = list[Json](form.tools)
    return body


def _number(said: JsonMap, name: str) -> int:
    value = said.get(name)
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0
