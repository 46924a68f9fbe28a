"""Requests in locked slots. A slot is released after the response, when its new tokens are known."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from typing import Protocol

from kvproxy.apis.api import Api
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonMap, as_object, field, loads
from kvproxy.apis.reported_usage import PrefixReuse, ReuseReader, reported_reuse
from kvproxy.apis.sse import EventReader
from kvproxy.backends.protocol import RelayedResponse
from kvproxy.errors import KvproxyError
from kvproxy.upstreams.kind import PlacedRequest
from kvproxy.upstreams.llama.client import LlamaClient, SlotState, Tokens
from kvproxy.upstreams.llama.slot_files import SlotFile, SlotSaver
from kvproxy.upstreams.llama.slots import Slot, SlotChoice, SlotTable

_MAX_CAPTURED_BYTES = 4 * 2**20  # The generated tokens of a longer response stay unknown.
_POLL_SECONDS, _MAX_POLLS = 0.02, 50


@dataclass(frozen=True, slots=True)
class CapturedResponse:
    text: str | None = None  # None if it is incomplete, or if the response has tool calls or reasoning.
    reuse: PrefixReuse | None = None


def _read_response(api: Api, body: bytes, *, is_stream: bool) -> CapturedResponse:
    try:
        if is_stream:
            assembler, reader = api.assembler(), ReuseReader()
            for event in EventReader().push(body):
                assembler.push(event)
                reader.push(event)
            # A cancelled stream has no end, but its slot holds the tokens.
            assembler.done = True
            response, reuse = assembler.result(), reader.reuse
        else:
            response = as_object(loads(body))
            reuse = reported_reuse(response)
        if response is None or _has_more_than_text(response):
            return CapturedResponse(None, reuse)
        return CapturedResponse(api.output_text(response), reuse)
    except (ValueError, KeyError, TypeError):
        return CapturedResponse()


def _has_more_than_text(response: JsonMap) -> bool:
    choices = response.get("choices")
    message: Json = field(choices[0], "message") if isinstance(choices, list) and choices else None
    return any(field(message, name) for name in ("tool_calls", "reasoning_content", "reasoning"))


class SlotServer(Protocol):
    """What a placement uses of its server; see `LlamaServer`."""

    client: LlamaClient
    table: SlotTable
    saver: SlotSaver | None
    unplaced_requests: int

    def release(self, slot: Slot) -> None: ...

    def start_task(self, work: Coroutine[None, None, None]) -> None: ...


class Placement(PlacedRequest):
    """A request and its locked slot. Call `record_response` or `abandon`; both release the slot.

    `predicted_tokens` is the number of prompt tokens that should be reused; None if some tokens of the slot are unknown.
    """

    def __init__(self, server: SlotServer, slot: Slot, choice: SlotChoice, prompt: Tokens, request: ApiRequest) -> None:
        super().__init__(add_slot_id(request, slot.id))
        self.predicted_tokens = choice.reused if choice.restore or slot.has_known_tokens else None
        self.uncached_tokens = len(prompt) - choice.reused
        self.restored: SlotFile | None = None  # The file that was restored into the slot, if any.
        self._server = server
        self._slot = slot
        self._prompt = prompt
        self._captured = bytearray()
        self._released = False
        self._unplaced_before = server.unplaced_requests

    def record_response(self, reply: RelayedResponse) -> None:
        """Capture the response while the client receives it; release the slot after the response."""
        reply.chunks = self._capture(reply.chunks)
        reply.on_end.add(lambda: self._server.start_task(self._finish(reply)))

    async def _capture(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if len(self._captured) <= _MAX_CAPTURED_BYTES:
                self._captured += chunk
            yield chunk

    def abandon(self) -> None:
        """Release the slot of a failed request; the slot's tokens are then unknown."""
        if not self._released:
            self._released = True
            self._slot.prefix = array("i")
            self._server.table.release(self._slot)

    async def _finish(self, reply: RelayedResponse) -> None:
        try:
            response = CapturedResponse()
            if len(self._captured) <= _MAX_CAPTURED_BYTES:
                body, api = bytes(self._captured), self.request.api
                response = await asyncio.to_thread(_read_response, api, body, is_stream=reply.is_streamed)
            state = await self._wait_until_idle(response)
            if state is not None:
                prefix = await self._new_prefix(response, reply.status, state)
                if self.restored is not None and response.reuse is not None and self._server.saver is not None:
                    self._server.saver.verify_restore(self.restored, self._prompt, response.reuse.cached_tokens)
                self._slot.update(prefix, state)
        except KvproxyError:
            self._slot.prefix = array("i")
        finally:
            self._released = True
            self._server.release(self._slot)

    async def _wait_until_idle(self, response: CapturedResponse) -> SlotState | None:
        for _ in range(_MAX_POLLS):
            states = await self._server.client.slots()
            state = next((slot_state for slot_state in states if slot_state.slot == self._slot.id), None)
            if state is None or not state.busy:
                return state
            if response.reuse is not None and self._server.unplaced_requests > self._unplaced_before:
                break
            await asyncio.sleep(_POLL_SECONDS)
        self._slot.prefix = array("i")
        return None

    async def _new_prefix(self, response: CapturedResponse, status: int, state: SlotState) -> Tokens:
        slot, prompt = self._slot, self._prompt
        if state.task == slot.task or status != 200:
            # The request did not reach the slot, or was rejected.
            return slot.prefix if state.tokens == slot.tokens else array("i")
        if response.reuse is not None and response.reuse.prompt_tokens != len(prompt):
            return array("i")
        # The server may have chosen this slot for another request.
        is_exclusive = self._server.unplaced_requests == self._unplaced_before
        if state.tokens < len(prompt):
            # The client left before the prompt was computed. After a response, the context was shifted.
            return prompt[: state.tokens] if is_exclusive and response.text is None else array("i")
        if response.text is None:
            return prompt if is_exclusive else array("i")
        output = await self._server.client.tokenize(response.text)
        if len(prompt) + len(output) >= state.context > 0:
            return array("i")
        if len(prompt) + len(output) - state.tokens in (0, 1):
            return (prompt + output)[: state.tokens]
        return prompt if is_exclusive else array("i")


def add_slot_id(request: ApiRequest, slot: int) -> ApiRequest:
    """Add `id_slot` to the request's body, unless the client set it or the API has no such field."""
    if "id_slot" in request.body or request.api.name == "messages":
        return request
    raw = request.raw.lstrip(b" \t\r\n\xef\xbb\xbf")
    return replace(request, raw=b'{"id_slot":%d,' % slot + raw[1:])
