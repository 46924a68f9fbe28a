"""The prefix caches of upstreams, as their mirrors know them."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvproxy.blocks.view import Divergence
from kvproxy.errors import InvalidRequest, KvproxyError, NoPrefixCache, UpstreamUnreachable
from kvproxy.mirror import view
from kvproxy.mirror.match import MirrorMatch
from kvproxy.proxy.backend import Call
from kvproxy.proxy.fleet.backend import FleetBackend
from kvproxy.proxy.fleet.engine import FleetEngine

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror

_SPELLED = 50
"""Chains whose beginning is turned into text, which may cost a request each."""
_RESETS = ("/reset_prefix_cache", "/flush_cache")
"""vLLM's route (in its development mode), and SGLang's."""


class MirroredPrefix:
    """All engines' mirrors; each row says whose it is where there are several."""

    def __init__(self, backend: FleetBackend) -> None:
        self._backend = backend
        self._tokenizer = backend.tokenizer

    def _mirrors(self) -> "list[tuple[FleetEngine, Mirror]]":
        return [(engine, engine.mirror) for engine in self._backend.engines.values() if engine.mirror is not None]

    async def blocks(self) -> list[dict[str, Any]]:
        return [
            row | {"engine": engine.url}
            for engine, mirror in self._mirrors()
            for row in view.list_blocks(mirror.state())
        ]

    async def queue(self) -> list[dict[str, Any]]:
        raise NoPrefixCache(
            "engines do not publish their order of eviction: blocks ls and blocks chains tell what they hold"
        )

    async def chains(self) -> list[dict[str, Any]]:
        found = [
            chain | {"engine": engine.url}
            for engine, mirror in self._mirrors()
            for chain in view.chains(mirror.state())
        ]
        firsts = [chain.pop("first_tokens") for chain in found]
        texts = await asyncio.gather(*(self._text(first) for first in firsts[:_SPELLED]))
        texts += ["" for _ in firsts[_SPELLED:]]
        return [chain | {"begins": text} for chain, text in zip(found, texts, strict=True)]

    async def show(self, name: str) -> dict[str, Any] | None:
        found = [
            row | {"engine": engine.url}
            for engine, mirror in self._mirrors()
            for row in view.show_blocks(mirror.state(), name)
        ]
        if len({row["hash"] for row in found}) > 1:
            raise InvalidRequest(f"{len(found)} blocks' hashes begin with {name!r}: give more of the hash")
        return found[0] | {"text": await self._text(found[0]["tokens"])} if found else None

    async def stats(self) -> dict[str, Any]:
        engines = {engine.url: mirror.stats() for engine, mirror in self._mirrors()}
        first = next(iter(engines.values()))
        totals = {name: sum(stats[name] for stats in engines.values()) for name in ("cached", "distinct", "evictions")}
        complete = all(stats["complete"] for stats in engines.values())
        streams = [stream for stats in engines.values() for stream in stats["streams"]]
        return first | totals | {"complete": complete, "streams": streams, "engines": list(engines)}

    async def reset(self) -> dict[str, Any]:
        """Ask every engine; its events then empty the mirror.

        Raises:
            NoPrefixCache: an engine has no route for it.
        """
        done = [await self._reset(engine) for engine in self._backend.engines.values()]
        return {"reset": all(done), "pinned": None, "used": None}

    async def _reset(self, engine: FleetEngine) -> bool:
        for path in _RESETS:
            reply = await engine.backend.forward("POST", path, {}, b"")
            await reply.close()
            if reply.status < 400:
                return True
            if reply.status not in (404, 405):
                return False
        raise NoPrefixCache(f"{engine.url} has no {_RESETS[0]}: start vLLM with VLLM_SERVER_DEV_MODE=1")

    async def explain(self, call: Call) -> dict[str, Any] | None:
        try:
            prompt = await self._tokenizer.prompt(call)
        except (UpstreamUnreachable, InvalidRequest) as error:
            return {"reason": error.message} | dict.fromkeys(
                ("prompt_tokens", "matched_tokens", "blocks", "divergence")
            )
        found = [(engine, *best) for engine, mirror in self._mirrors() if (best := mirror.match(prompt)) is not None]
        if not found:
            return {
                "prompt_tokens": len(prompt.tokens),
                "matched_tokens": 0,
                "blocks": [],
                "tiers": {},
                "divergence": None,
                "reason": "the upstream has not told of any block yet",
            }
        engine, rank, match = max(found, key=lambda item: item[2].matched_tokens)
        return {
            "prompt_tokens": match.prompt_tokens,
            "matched_tokens": match.matched_tokens,
            "blocks": [view.hex_of(block.hash) for block in match.blocks],
            "tiers": {},
            "divergence": await self._spelled(match.divergence),
            "engine": engine.url,
            "rank": rank,
            "engines": {one.url: held.matched_tokens for one, _, held in found},
            "complete": engine.mirror is not None and engine.mirror.complete,
            "named_alike": match.named_alike,
            "digests": [digest.hex() for digest in match.digests],
            "reason": _reason(match),
        }

    async def _spelled(self, divergence: Divergence | None) -> dict[str, Any] | None:
        if divergence is None:
            return None
        parts = (divergence.cached, divergence.prompt, divergence.before)
        cached, prompt, context = await asyncio.gather(*map(self._text, parts))
        return {"position": divergence.position, "cached": cached, "prompt": prompt, "context": context}

    async def _text(self, tokens: Sequence[int] | None) -> str:
        """The text of tokens; the tokens themselves where nobody can spell them."""
        try:
            return await self._tokenizer.text(tokens) if tokens else ""
        except KvproxyError:
            return " ".join(map(str, tokens or ()))


def _reason(match: MirrorMatch) -> str | None:
    if match.named_alike is False:
        return "matched by tokens: the engine names its blocks by another recipe or seed than hash_algorithm and hash_seed say"
    return None
