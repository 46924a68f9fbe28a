"""Serves requests from the embedded engine."""

import itertools
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace

from kvproxy.apis.api_request import PUBLIC_TENANT, ApiRequest, session_name
from kvproxy.apis.codecs import CODECS
from kvproxy.apis.codecs.codec import Conversation, DecodedRequest, Echo, PromptInput
from kvproxy.apis.codecs.generation import Delta, GenerationRequest, Grammar
from kvproxy.apis.json import Json, JsonObject
from kvproxy.backends.admission import Admission
from kvproxy.backends.prefix_cache import PrefixCache, decode_divergence
from kvproxy.backends.protocol import Forwarder, GeneratedResponse
from kvproxy.backends.reports import PrefixCacheStats, PrefixReport, ResetReport
from kvproxy.blocks import pool_rows
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import PinLimitExceeded, Pins
from kvproxy.blocks.row_types import BlockContent, BlockRow, ChainRow, PinRow, PoolMap
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.text.reasoning import ReasoningParser
from kvproxy.engine.text.tool_calls import ToolCallFormat, ToolCallParser
from kvproxy.errors import InvalidRequest, ModelNotFound, NotFound
from kvproxy.tiers.chunk_store import TierStats

_UNLIMITED = 1_000_000
_MAX_DIGITS = 12
_MAX_WARNINGS = 64
_log = logging.getLogger("kvproxy")


class EmbeddedBackend:
    """Serves requests from the embedded engine.

    Args:
        shared_blocks: tenants share cached blocks; the response time then reveals whether a prompt is cached.
        global_priorities: compare the priorities of all tenants' requests, not only of one tenant's.
    """

    def __init__(
        self,
        worker: AsyncLLM,
        *,
        shared_blocks: bool = True,
        global_priorities: bool = True,
        admission: Admission | None = None,
    ) -> None:
        self.worker = worker
        self.admission = admission or Admission(_UNLIMITED, 0, 0.0)
        self._shared_blocks = shared_blocks
        self._global_priorities = global_priorities
        self.name = f"local:{worker.name}"
        self.forwarder: Forwarder | None = None
        self._numbers = itertools.count()
        self._warned: set[tuple[str, str]] = set()

    async def start(self) -> None:
        await self.worker.start()

    async def close(self) -> None:
        await self.worker.stop()

    def failure(self) -> str | None:
        return self.worker.failure

    async def models(self) -> JsonObject:
        model: JsonObject = {"object": "model", "created": 0, "owned_by": "kvproxy"}
        model["max_model_len"] = self.worker.max_model_len
        adapters: list[Json] = [{"id": name, **model, "parent": self.worker.name} for name in self.worker.adapters]
        return {"object": "list", "data": [{"id": self.worker.name, **model}, *adapters]}

    async def send(self, request: ApiRequest) -> GeneratedResponse:
        await self.admission.enter()
        try:
            return await self._generate(request)
        except BaseException:
            self.admission.leave()
            raise

    async def _generate(self, request: ApiRequest) -> GeneratedResponse:
        decoded = await self._decode_callable(request)
        generation = await self.generation_request(request, decoded)
        available = self.worker.token_capacity - len(generation.tokens)
        if request.api.name == "messages" and 0 < available < (generation.sampling.max_tokens or 0):
            # Claude Code requests as many tokens as Anthropic's models can generate.
            generation = replace(generation, sampling=replace(generation.sampling, max_tokens=available))
            decoded = replace(decoded, ignored=("max_tokens", *decoded.ignored))
        self._warn_of_ignored(request, decoded.ignored)
        echo = await self._make_echo(decoded, generation.tokens) if decoded.echo else None
        parser = await self._output_parser(decoded, generation)
        pieces = self.worker.generate(generation)
        first = await anext(pieces)

        keeps = request.control.rule.repair_history and isinstance(decoded.prompt, Conversation)
        answer = list[Delta]()

        async def all_pieces() -> AsyncIterator[Delta]:
            async with aclosing(pieces) as rest:  # type: ignore[type-var]
                answer.append(first)
                yield parser.parse(first) if parser else first
                async for piece in rest:
                    if keeps:
                        answer.append(piece)
                    if keeps and piece.finish_reason is not None:
                        await self._add_output(generation, answer)
                    yield parser.parse(piece) if parser else piece

        closed = False

        async def close() -> None:
            nonlocal closed
            if not closed:
                closed = True
                self.admission.leave()
            await pieces.aclose()  # type: ignore[attr-defined]

        return GeneratedResponse(
            all_pieces(), first.usage, request.model, echo, self.worker.block_size, close, decoded.ignored
        )

    async def _add_output(self, generation: GenerationRequest, answer: Sequence[Delta]) -> None:
        if generation.sampling.n == 1:
            tokens = [token for piece in answer for token in piece.tokens]
            text = "".join(piece.text for piece in answer)
            await self.worker.async_tokenizer.run(
                lambda tokenizer: tokenizer.add_output(generation.tokens, tokens, text, generation.salt or "")
            )

    def _decode_request(self, request: ApiRequest) -> DecodedRequest:
        codec = CODECS.get(request.api.name)
        if codec is None:
            raise NotFound(f"the embedded engine does not support {request.api.name}: use --upstream")
        if request.model != self.worker.name and request.model not in self.worker.adapters:
            names = " or ".join(repr(name) for name in (self.worker.name, *self.worker.adapters))
            raise ModelNotFound(
                f"model {request.model!r} is not served here: use {names}, or start with --model", param="model"
            )
        return codec.decode(request.body, self.worker.default_sampling_params)

    async def generation_request(self, request: ApiRequest, decoded: DecodedRequest | None = None) -> GenerationRequest:
        decoded = decoded or await self._decode_callable(request)
        salt = self._cache_salt(request, decoded)
        tokens = await self._tokenize(decoded.prompt, salt or "")
        return GenerationRequest(
            # Clients may repeat an id; the engine requires unique ids.
            f"{request.request_id}.{next(self._numbers)}",
            tuple(tokens),
            decoded.sampling,
            salt=salt,
            priority=request.control.priority if self._global_priorities else 0,
            tenant="" if request.tenant == PUBLIC_TENANT else request.tenant,
            queue_priority=decoded.queue_priority if self._global_priorities else 0,
            tenant_priority=0 if self._global_priorities else decoded.queue_priority,
            grammar=await self._grammar(decoded),
            adapter=request.model if request.model in self.worker.adapters else None,
            session=session_name(request),
        )

    async def _decode_callable(self, request: ApiRequest) -> DecodedRequest:
        """Decode a request. Ignore tools that it may, but need not call, if their calls cannot be parsed."""
        decoded = self._decode_request(request)
        tools, prompt = decoded.tools, decoded.prompt
        if tools is None or tools.required or not isinstance(prompt, Conversation):
            return decoded
        if await self.worker.async_tokenizer.run(lambda tokenizer: tokenizer.tool_call_format) is not None:
            return decoded
        prompt = replace(prompt, tools=())
        return replace(decoded, prompt=prompt, tools=None, ignored=("tools", *decoded.ignored))

    def _warn_of_ignored(self, request: ApiRequest, names: Iterable[str]) -> None:
        for name in names:
            if (request.api.name, name) not in self._warned and len(self._warned) < _MAX_WARNINGS:
                self._warned.add((request.api.name, name))
                _log.warning("the embedded engine ignores the field %s of requests to %s", name, request.api.path)

    async def _tool_call_format(self, decoded: DecodedRequest) -> ToolCallFormat | None:
        if decoded.tools is None:
            return None
        form = await self.worker.async_tokenizer.run(lambda tokenizer: tokenizer.tool_call_format)
        if form is None:
            raise InvalidRequest(
                "kvproxy cannot parse the tool calls of this model's chat template: remove tools, or use --upstream",
                param="tools",
            )
        return form

    async def _output_parser(
        self, decoded: DecodedRequest, generation: GenerationRequest
    ) -> ToolCallParser | ReasoningParser | None:
        form = await self._tool_call_format(decoded)
        if form is not None:
            return ToolCallParser(form)
        # A grammar leaves no room for reasoning.
        if generation.grammar is not None or not isinstance(decoded.prompt, Conversation):
            return None
        reasoning = self.worker.tokenizer.reasoning_format
        return None if reasoning is None else ReasoningParser(reasoning, reasoning.begins_in(generation.tokens))

    async def _grammar(self, decoded: DecodedRequest) -> Grammar | None:
        form = await self._tool_call_format(decoded)
        if form is None or decoded.tools is None:
            return decoded.grammar
        tools = decoded.tools
        return form.grammar(tools.schemas, required=tools.required, parallel=tools.parallel)

    def cache_request(self, id: str, generation: GenerationRequest) -> CacheRequest:
        lora = self.worker.adapters.get(generation.adapter or "")
        return CacheRequest(id, generation.tokens, cache_salt=generation.salt, lora=lora)

    def _cache_salt(self, request: ApiRequest, decoded: DecodedRequest) -> str | None:
        if self._shared_blocks or (request.tenant == PUBLIC_TENANT and not decoded.salt):
            return decoded.salt
        # Also for the public tenant, whose salt could otherwise be equal to another tenant's.
        return f"{request.tenant}:{decoded.salt or ''}"

    async def _tokenize(self, prompt: PromptInput, scope: str) -> list[int]:
        tokenizer = self.worker.async_tokenizer
        match prompt:
            case Conversation():
                return await tokenizer.chat(list(prompt.messages), list(prompt.tools) or None, scope)
            case str():
                return await tokenizer.encode(prompt)
        return list(prompt)

    async def _make_echo(self, decoded: DecodedRequest, tokens: tuple[int, ...]) -> Echo:
        tokenizer = self.worker.async_tokenizer
        text = decoded.prompt if isinstance(decoded.prompt, str) else await tokenizer.run(lambda it: it.decode(tokens))
        return Echo(text, await tokenizer.decode_with_special_tokens(tokens[:1]))


class EmbeddedPrefixCache(PrefixCache):
    def __init__(self, backend: EmbeddedBackend) -> None:
        self._backend = backend
        self._worker = backend.worker

    async def blocks(self) -> list[BlockRow]:
        return await self._worker.inspect(pool_rows.list_blocks)

    async def eviction_queue(self) -> list[BlockRow]:
        return await self._worker.inspect(pool_rows.list_free_blocks)

    async def pool_map(self) -> PoolMap:
        pool_map = await self._worker.inspect(pool_rows.map_pool)
        # A salt begins with the tenant's name.
        return replace(pool_map, tenants=[salt.removesuffix(":") or PUBLIC_TENANT for salt in pool_map.tenants or ()])

    async def _tree_nodes(self) -> list[pool_rows.TreeNode]:
        return await self._worker.inspect(pool_rows.tree_nodes_from_pool)

    async def chains(self) -> list[ChainRow]:
        chains = await self._worker.inspect(pool_rows.list_chains)
        return [replace(chain, first_text=await self._detokenize(chain.first_tokens)) for chain in chains]

    async def find_block(self, name: str) -> BlockContent | None:
        if not (name.isdecimal() and name.isascii() and len(name) <= _MAX_DIGITS):
            raise InvalidRequest(f"blocks of the embedded engine have numbers, not {name[:40]!r}: see blocks ls")
        block = await self._worker.inspect(lambda manager: pool_rows.read_block(manager, int(name)))
        return block and replace(block, text=await self._detokenize(block.tokens))

    async def stats(self) -> PrefixCacheStats:
        pool = await self._worker.inspect(pool_rows.report_pool)
        size = self._worker.block_bytes
        pool = replace(pool, block_bytes=size, used_bytes=size * (pool.used or 0))
        return replace(PrefixCacheStats.of_pool(pool), tier_hits=self._worker.num_tier_hits)

    async def reset(self) -> ResetReport:
        return await self._worker.inspect(_reset)

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        generation = await self._backend.generation_request(request)
        prompt = self._backend.cache_request("explain", generation)
        match = await self._worker.inspect(lambda manager: pool_rows.match_prefix(manager, prompt))
        return PrefixReport(
            prompt_tokens=match.prompt_tokens,
            matched_tokens=match.matched_tokens,
            blocks=match.blocks,
            tiers=await self._worker.match_tiers(prompt, match.matched_tokens),
            divergence=await decode_divergence(match.divergence, self._detokenize),
            groups=match.groups,
        )

    async def pins(self) -> list[PinRow]:
        return await self._worker.access_pins(Pins.list)

    async def pin(self, name: str, ttl: float | None, request: ApiRequest) -> int:
        generation = await self._backend.generation_request(request)
        chain, block = self._backend.cache_request("pin", generation), self._worker.block_size
        size = len(chain.tokens)
        if size < block:
            raise InvalidRequest(f"the prompt has {size} tokens, fewer than a block ({block}), so it cannot be pinned")
        # A lookup never matches the last token, so add one.
        chain.append(0)

        def pin(pins: Pins) -> int:
            try:
                return pins.pin(name, chain, ttl)
            except PinLimitExceeded as error:
                needed = pins.pool_blocks + error.missing
                raise InvalidRequest(
                    f"{error}, because a request of {self._worker.max_model_len:,} tokens needs the other blocks: remove a"
                    f" pin, start with --num-blocks {needed} or more, or lower engine.max_model_len"
                ) from None

        return await self._worker.access_pins(pin)

    async def unpin(self, name: str) -> bool:
        return await self._worker.access_pins(lambda pins: pins.unpin(name))

    async def tiers(self) -> list[TierStats]:
        return self._worker.tier_stats()

    async def clear_tier(self, name: str) -> int | None:
        return await self._worker.clear_tier(name)

    async def _detokenize(self, tokens: Sequence[int] | None) -> str:
        return await self._worker.async_tokenizer.decode_with_special_tokens(tokens) if tokens else ""


def _reset(manager: KVCacheManager) -> ResetReport:
    figures = pool_rows.report_pool(manager)
    return ResetReport(manager.reset_prefix_cache(), figures.pinned, figures.used)
