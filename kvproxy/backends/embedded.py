"""The embedded engine as a backend: requests in the engine's terms in, typed pieces out."""

import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing

from kvproxy.apis.codecs import CODECS
from kvproxy.apis.codecs.codec import Codec, Conversation, DecodedRequest, Echo, PromptInput
from kvproxy.apis.json import Json, JsonObject
from kvproxy.apis.request import PUBLIC, ApiRequest
from kvproxy.backends.admission import Admission
from kvproxy.backends.protocol import Forwarder, Generated
from kvproxy.blocks.request import CacheRequest
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.text.tool_calls import ToolCallFormat, ToolCallParser
from kvproxy.errors import InvalidRequest, ModelNotFound, NotFound
from kvproxy.generation import Delta, GenerationRequest, Grammar, SamplingParams

_MOST = 1_000_000


class EmbeddedBackend:
    """Answers from the embedded engine.

    Args:
        worker: the engine.
        shared: let tenants share blocks. Otherwise each has its own, and none can tell what another one sent.
        door: how many requests it takes at once.
        ranked: let clients choose their rank among all. Otherwise it counts among a tenant's own requests only.
    """

    def __init__(
        self, worker: AsyncLLM, *, shared: bool = True, ranked: bool = True, door: Admission | None = None
    ) -> None:
        self.worker = worker
        self.door = door or Admission(_MOST, 0, 0.0)
        self._shared = shared
        self._ranked = ranked
        self.name = f"local:{worker.name}"
        self.forwarder: Forwarder | None = None
        self._numbers = itertools.count()

    async def start(self) -> None:
        await self.worker.start()

    async def close(self) -> None:
        await self.worker.stop()

    def failure(self) -> str | None:
        return self.worker.failure

    async def models(self) -> JsonObject:
        model: JsonObject = {"object": "model", "created": 0, "owned_by": "kvproxy"}
        size: JsonObject = {"max_model_len": self.worker.max_model_len}
        adapted: list[Json] = [
            {"id": name, **model, **size, "parent": self.worker.name} for name in self.worker.adapters
        ]
        return {"object": "list", "data": [{"id": self.worker.name, **model, **size}, *adapted]}

    async def send(self, request: ApiRequest) -> Generated:
        """Generate; returns with the first piece, when it is known how much of the prompt was cached.

        Raises:
            NotFound: the engine does not speak this API.
            ModelNotFound: the request names another model.
            InvalidRequest: it asks for what the engine cannot do.
            Overloaded: too many requests wait for it.
        """
        await self.door.enter()
        try:
            return await self._generate(request)
        except BaseException:
            self.door.leave()
            raise

    async def _generate(self, request: ApiRequest) -> Generated:
        wanted = self._codec(request).decode(request.body)
        generation = await self.generation(request, wanted)
        echo = await self._echo(wanted, generation.tokens) if wanted.echo else None
        form = await self._tool_call_format(wanted)
        pieces = self.worker.generate(generation)
        first = await anext(pieces)

        async def all_pieces() -> AsyncIterator[Delta]:
            read = ToolCallParser(form).parse if form is not None else _as_it_is
            async with aclosing(pieces) as rest:  # type: ignore[type-var]
                yield read(first)
                async for piece in rest:
                    yield read(piece)

        inside = [self.door.leave]

        async def close() -> None:
            while inside:
                inside.pop()()
            await pieces.aclose()  # type: ignore[attr-defined]

        return Generated(all_pieces(), first.usage, request.model, echo, close)

    def _codec(self, request: ApiRequest) -> Codec:
        codec = CODECS.get(request.api.name)
        if codec is None:
            raise NotFound(f"the embedded engine makes no {request.api.name}: use --upstream")
        if request.model != self.worker.name and request.model not in self.worker.adapters:
            names = " or ".join(repr(name) for name in (self.worker.name, *self.worker.adapters))
            raise ModelNotFound(
                f"model {request.model!r} is not served here: use {names}, or start with --model",
                param="model",
            )
        return codec

    async def generation(self, request: ApiRequest, wanted: DecodedRequest | None = None) -> GenerationRequest:
        """A request as the engine takes it; raises InvalidRequest for what the engine cannot do."""
        wanted = wanted or self._codec(request).decode(request.body)
        tokens = await self._tokens(wanted.prompt)
        return GenerationRequest(
            # A client may send the same request id twice; the engine's ids must be unique.
            f"{request.request_id}.{next(self._numbers)}",
            tuple(tokens),
            sampling_params(wanted, self.worker.default_sampling_params),
            salt=self._salt(request, wanted),
            priority=request.control.priority if self._ranked else 0,
            tenant=request.tenant,
            queue_priority=wanted.queue_priority if self._ranked else 0,
            own_priority=0 if self._ranked else wanted.queue_priority,
            grammar=await self._grammar(wanted),
            adapter=request.model if request.model in self.worker.adapters else None,
        )

    async def _tool_call_format(self, wanted: DecodedRequest) -> ToolCallFormat | None:
        """How the model writes calls, where the request lets it call tools."""
        if wanted.tools is None:
            return None
        form = await self.worker.async_tokenizer.tool_call_format()
        if form is None:
            raise InvalidRequest(
                "this model's chat template cannot write calls of tools so that they can be read: leave tools out, or use"
                " --upstream",
                param="tools",
            )
        return form

    async def _grammar(self, wanted: DecodedRequest) -> Grammar | None:
        form = await self._tool_call_format(wanted)
        if form is None or wanted.tools is None:
            return wanted.grammar
        tools = wanted.tools
        return form.grammar(tools.schemas, required=tools.required, parallel=tools.parallel)

    def cached(self, id: str, generation: GenerationRequest, *more: int) -> CacheRequest:
        """A request as the block cache knows it, with `more` tokens behind the prompt."""
        lora = self.worker.adapters.get(generation.adapter or "")
        return CacheRequest(id, [*generation.tokens, *more], salt=generation.salt, lora=lora)

    def _salt(self, request: ApiRequest, wanted: DecodedRequest) -> str | None:
        """What keeps a tenant's blocks apart, together with the salt of the request's own."""
        if self._shared or request.tenant == PUBLIC:
            return wanted.salt
        return f"{request.tenant}:{wanted.salt or ''}"

    async def _tokens(self, prompt: PromptInput) -> list[int]:
        tokenizer = self.worker.async_tokenizer
        match prompt:
            case Conversation():
                return await tokenizer.chat(list(prompt.messages), list(prompt.tools) or None)
            case str():
                return await tokenizer.encode(prompt)
        return list(prompt)

    async def _echo(self, wanted: DecodedRequest, tokens: tuple[int, ...]) -> Echo:
        tokenizer = self.worker.async_tokenizer
        (first,) = await tokenizer.token_texts(list(tokens[:1]))
        text = wanted.prompt if isinstance(wanted.prompt, str) else await tokenizer.decode(list(tokens))
        return Echo(text, first)


def _as_it_is(piece: Delta) -> Delta:
    return piece


def sampling_params(wanted: DecodedRequest, recommended: SamplingParams) -> SamplingParams:
    """How a request wants its tokens chosen; where it does not say, as the model recommends."""
    return SamplingParams(
        max_tokens=wanted.max_tokens,
        temperature=recommended.temperature if wanted.temperature is None else wanted.temperature,
        top_p=recommended.top_p if wanted.top_p is None else wanted.top_p,
        top_k=recommended.top_k if wanted.top_k is None else wanted.top_k,
        seed=wanted.seed,
        stop=wanted.stop,
        logprobs=wanted.logprobs,
        n=wanted.n,
        ignore_eos=wanted.ignore_eos,
        prompt_logprobs=wanted.prompt_logprobs,
    )
