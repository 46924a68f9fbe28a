"""A request in the slot that was chosen for it, until what the slot holds afterwards is known."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from kvproxy.apis.request import ApiRequest
from kvproxy.backends.protocol import Relayed
from kvproxy.errors import KvproxyError
from kvproxy.upstreams.llama.client import SlotState
from kvproxy.upstreams.llama.packed_tokens import Tokens, count, first
from kvproxy.upstreams.llama.response_capture import Heard, Told
from kvproxy.upstreams.llama.slot_choice import Plan
from kvproxy.upstreams.llama.slot_files import Saved
from kvproxy.upstreams.llama.slots import View

if TYPE_CHECKING:
    from kvproxy.upstreams.llama.server import LlamaServer

_PAUSE, _LOOKS = 0.02, 50
"""Seconds between two looks at a slot that is about to be left, and how many looks there are."""


class Placement:
    """A request, and the slot that is locked for it.

    Args:
        server: whose slot it is.
        view: the slot.
        plan: why it was chosen.
        prompt: the request's tokens.
        request: as it came.

    Attributes:
        request: as it is sent: with `id_slot`, and otherwise byte for byte the same.
        predicted: tokens of the prompt that should not be computed; None where not all is known that the slot holds.
        work: tokens that should be.
        restored: what was read into the slot for it.
    """

    def __init__(self, server: "LlamaServer", view: View, plan: Plan, prompt: Tokens, request: ApiRequest) -> None:
        self.request = naming(request, view.slot)
        self.predicted = plan.reused if plan.restore or view.known else None
        self.work = count(prompt) - plan.reused
        self.restored: Saved | None = None
        self._server = server
        self._view = view
        self._prompt = prompt
        self._left = False
        self._strangers = server.strangers

    def follow(self, reply: Relayed) -> None:
        """Listen to the answer, and give the slot back when it is over."""
        heard = Heard(self.request.api, reply.streams)
        reply.chunks = heard.listen(reply.chunks)
        reply.when_over.append(lambda: self._server.spawn(self._settle(heard, reply.status)))

    def gone(self) -> None:
        """Give the slot back: there is no answer."""
        if not self._left:
            self._left = True
            # What the server did before it failed is not known.
            self._view.held = b""
            self._server.slots.release(self._view)

    async def _settle(self, heard: Heard, status: int) -> None:
        try:
            told = await asyncio.to_thread(heard.told)
            state = await self._after(told)
            if state is not None:
                held = await self._held(told, status, state)
                if self.restored is not None and told.prompt is not None and self._server.keeper is not None:
                    self._server.keeper.judge(self.restored, self._prompt, told.prompt[1])
                self._view.learn(held, state)
        except KvproxyError:
            self._view.held = b""
        finally:
            self._left = True
            self._server.left(self._view)

    async def _after(self, told: Told) -> SlotState | None:
        """The slot once it is idle; None where somebody else's request is in it by now."""
        for _ in range(_LOOKS):
            state = next((each for each in await self._server.routes.slots() if each.slot == self._view.slot), None)
            if state is None or not state.busy:
                return state
            if told.prompt is not None and self._server.strangers > self._strangers:
                break
            await asyncio.sleep(_PAUSE)
        self._view.held = b""
        return None

    async def _held(self, told: Told, status: int, state: SlotState) -> Tokens:
        """What the slot holds, as far as that is certain.

        It holds the prompt and the answer, but not the answer's last token, which was never computed with. An answer's text
        may have been other tokens than its text makes; then there are more or fewer of them than the server counts.
        """
        view, prompt = self._view, self._prompt
        if state.task == view.task or status != 200:
            # The request never came to the slot, or was refused.
            return view.held if state.tokens == view.tokens else b""
        if told.prompt is not None and told.prompt[0] != count(prompt):
            return b""
        # Nobody else can have been in the slot, unless the server chose it for somebody.
        alone = self._server.strangers == self._strangers
        if state.tokens < count(prompt):
            # The client left before the prompt was computed; after an answer it means that the context was shifted.
            return first(prompt, state.tokens) if alone and told.text is None else b""
        if told.text is None:
            return prompt if alone else b""
        answer = await self._server.routes.tokenize(told.text)
        if count(prompt) + count(answer) >= state.context > 0:
            return b""
        exact = count(prompt) + count(answer) - state.tokens in (0, 1)
        return first(prompt + answer, state.tokens) if exact else prompt if alone else b""


def naming(request: ApiRequest, slot: int) -> ApiRequest:
    """A request that names its slot; unchanged where it names one itself, or where the API has no place for it."""
    if "id_slot" in request.body or request.api.name == "messages":
        return request
    raw = request.raw.lstrip(b" \t\r\n\xef\xbb\xbf")
    return replace(request, raw=b'{"id_slot":%d,' % slot + raw[1:])
