"""The prefix caches of upstreams, as their mirrors know them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kvproxy.apis.json import field, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.backends.prefix_cache import (
    EngineReset,
    PrefixReport,
    ResetReport,
    SpelledDivergence,
)
from kvproxy.backends.protocol import Relayed
from kvproxy.blocks.pool_map import PoolMap, map_rows
from kvproxy.blocks.rows import BlockContent, BlockRow, ChainRow, Divergence, PinRow
from kvproxy.blocks.tree import Branch, list_branches, nodes_of_rows
from kvproxy.errors import InvalidRequest, KvproxyError, NoPrefixCache, NotFound
from kvproxy.mirror import view
from kvproxy.mirror.match import MirrorMatch, prepare
from kvproxy.mirror.prompt import Prompt
from kvproxy.upstreams.engine import FleetEngine
from kvproxy.upstreams.engine_reports.reported_prefix import ToldPrefix
from kvproxy.upstreams.fleet import Fleet
from kvproxy.upstreams.recomputed_pins import UpstreamPins

_SPELLED = 50
"""Chains whose beginning is turned into text, which may cost a request each."""
_SECONDS = 5.0
"""How long an engine may take to tell what tokens mean."""
_RESETS = ("/reset_prefix_cache", "/flush_cache")
"""vLLM's route (in its development mode), and SGLang's."""


class MirroredPrefix(ToldPrefix):
    """All engines' mirrors; see `PrefixCache`. What an engine does not publish is refused, as where there is no mirror."""

    def __init__(self, fleet: Fleet, pins: UpstreamPins) -> None:
        super().__init__(fleet)
        self._pins = pins

    async def pins(self) -> list[PinRow]:
        return self._pins.rows()

    async def pin(self, name: str, ttl: float | None, request: ApiRequest | None, leaf: str | None) -> int:
        """Keep the whole blocks of a prompt, whether they are cached already or not; see `UpstreamPins`."""
        if request is not None:
            prompt = await self._fleet.tokenizer.prompt(request, self._fleet.upstreams(), _SECONDS)
            return self._pins.add(name, prompt.tokens, request.model, prompt.salt, ttl)
        tokens = await asyncio.to_thread(view.chain_to, self._shelves(), leaf or "")
        if tokens is None:
            raise NotFound(
                f"no chain whose tokens are known ends in a block {(leaf or '')[:80]!r}: blocks chains lists them"
            )
        return self._pins.add(name, tokens, await self._model(), None, ttl)

    async def _model(self) -> str:
        """The model that is served, for a chain that no request named."""
        listed = field(await self._fleet.models(), "data")
        first = field(listed[0], "id") if isinstance(listed, list) and listed else None
        return first if isinstance(first, str) else ""

    async def unpin(self, name: str) -> bool:
        return self._pins.remove(name)

    async def blocks(self) -> list[BlockRow]:
        return await asyncio.to_thread(view.list_blocks, self._shelves())

    def _shelves(self) -> list[view.Shelf]:
        """What all engines hold now."""
        return [shelf for engine, mirror in self._mirrors() for shelf in view.shelves(mirror.state(), engine.url)]

    async def queue(self) -> list[BlockRow]:
        raise NoPrefixCache(
            "engines do not publish their order of eviction: blocks ls and blocks chains tell what they hold"
        )

    async def map(self) -> PoolMap:
        return await asyncio.to_thread(map_rows, await self.blocks())

    async def tree(self, parent: str | None, start: int, limit: int) -> tuple[list[Branch], int]:
        rows = await self.blocks()
        found, total = await asyncio.to_thread(lambda: list_branches(nodes_of_rows(rows), parent, start, limit))
        contents = await asyncio.gather(*(self.show(branch.names[0]) for branch in found))
        texts = ["" if content is None else content.text for content in contents]
        return [replace(branch, text=text) for branch, text in zip(found, texts, strict=True)], total

    async def chains(self) -> list[ChainRow]:
        shelves = [view.shelves(mirror.state(), engine.url) for engine, mirror in self._mirrors()]
        found = await asyncio.to_thread(lambda: [row for held in shelves for row in view.chains(held)])
        texts = await asyncio.gather(*(self._text(chain.first_tokens) for chain in found[:_SPELLED]))
        spelled = [replace(chain, begins=text) for chain, text in zip(found, texts, strict=False)]
        return spelled + found[_SPELLED:]

    async def show(self, name: str) -> BlockContent | None:
        found = await asyncio.to_thread(view.show_blocks, self._shelves(), name)
        if len({content.block.hash for content in found}) > 1:
            raise InvalidRequest(f"{len(found)} blocks' hashes begin with {name[:80]!r}: give more of the hash")
        return replace(found[0], text=await self._text(found[0].tokens)) if found else None

    async def reset(self) -> ResetReport:
        """Ask every engine. The mirror of one that confirms it is emptied at once: vLLM publishes it only with its next step.

        Raises:
            NoPrefixCache: an engine has no route for it.
        """
        # What llama.cpp holds is looked after by `SlotPrefix`, which knows its routes.
        engines = [each for each in self._fleet.engines.values() if each.llama is None or not each.llama.active]
        done = tuple(await asyncio.gather(*map(self._reset, engines)))
        return ResetReport(all(each.reset for each in done), engines=done)

    async def _reset(self, engine: FleetEngine) -> EngineReset:
        mark = engine.mirror.before_reset() if engine.mirror is not None else ()
        for path in _RESETS:
            try:
                reply = await engine.upstream.forward("POST", path, {}, b"")
                said = await reply.body()
            except KvproxyError as error:
                return EngineReset(engine.url, False, error.message)
            if reply.status in (404, 405):
                continue
            refused = _refusal(reply, said)
            if refused is None and engine.mirror is not None:
                engine.mirror.cleared(mark)
            return EngineReset(engine.url, refused is None, refused)
        raise NoPrefixCache(f"{engine.url} has no {_RESETS[0]}: start vLLM with VLLM_SERVER_DEV_MODE=1")

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        try:
            prompt = await self._fleet.tokenizer.prompt(request, self._fleet.upstreams(), _SECONDS)
        except KvproxyError as error:
            return PrefixReport(reason=error.message)
        mirrors = self._mirrors()
        await asyncio.to_thread(prepare, prompt, [recipe for _, mirror in mirrors for recipe in mirror.recipes()])
        # What an engine holds that gets no request, or failed a moment ago, is of no use to this one.
        sound = [(engine, mirror) for engine, mirror in mirrors if engine.health.sound]
        found = [(engine, mirror, *best) for engine, mirror in sound if (best := mirror.match(prompt)) is not None]
        if not found:
            return _nothing_known(prompt)
        engine, mirror, rank, match = max(found, key=lambda item: item[3].matched_tokens)
        return PrefixReport(
            prompt_tokens=match.prompt_tokens,
            matched_tokens=match.matched_tokens,
            blocks=tuple(view.hex_of(block.hash) for block in match.blocks),
            divergence=await self._spelled(match.divergence),
            reason=_reason(match),
            engine=engine.url,
            rank=rank,
            engines={one.url: held.matched_tokens for one, _, _, held in found},
            complete=mirror.complete,
            named_alike=match.named_alike,
            digests=tuple(digest.hex() for digest in match.digests),
        )

    async def _spelled(self, divergence: Divergence | None) -> SpelledDivergence | None:
        if divergence is None:
            return None
        parts = (divergence.cached, divergence.prompt, divergence.before)
        cached, prompt, context = await asyncio.gather(*map(self._text, parts))
        return SpelledDivergence(divergence.position, cached, prompt, context)

    async def _text(self, tokens: Sequence[int] | None) -> str:
        """The text of tokens; the tokens themselves where nobody can spell them."""
        if not tokens:
            return ""
        try:
            return await self._fleet.tokenizer.text(tokens, self._fleet.upstreams(), _SECONDS)
        except KvproxyError:
            return " ".join(map(str, tokens))


def _refusal(reply: Relayed, said: bytes) -> str | None:
    """Why an engine did not forget its prefix cache; None where it did. vLLM refuses with 200 and `"success": false`."""
    if reply.status >= 400:
        return f"it answered {reply.status}"
    try:
        success = field(loads(said), "success") if said.strip() else None
    except ValueError:
        return None
    return "it says that it did not: requests are running there, try again" if success is False else None


def _nothing_known(prompt: Prompt) -> PrefixReport:
    reason = "the upstream has not told of any block yet"
    return PrefixReport(prompt_tokens=len(prompt.tokens), matched_tokens=0, reason=reason)


def _reason(match: MirrorMatch) -> str | None:
    if match.named_alike is False:
        return "matched by tokens: the engine names its blocks by another recipe or seed than hash_algorithm and hash_seed say"
    return None
