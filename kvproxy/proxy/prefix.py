"""The prefix cache as the admin routes show it: the embedded engine's own, or the mirrors of upstreams."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kvproxy.blocks import view
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.view import Divergence
from kvproxy.engine.worker import EngineWorker
from kvproxy.errors import InvalidRequest, NoPrefixCache
from kvproxy.proxy.backend import Call
from kvproxy.proxy.local import LocalBackend


class PrefixView(Protocol):
    """A prefix cache seen from outside. Every method may raise NoPrefixCache."""

    async def blocks(self) -> list[dict[str, Any]]:
        """Every block."""

    async def queue(self) -> list[dict[str, Any]]:
        """Idle blocks, the next to be given up first."""

    async def chains(self) -> list[dict[str, Any]]:
        """Cached chains, with the text that each begins with."""

    async def show(self, name: str) -> dict[str, Any] | None:
        """One block with its tokens and text, by its number or the beginning of its hash."""

    async def stats(self) -> dict[str, Any]:
        """Figures."""

    async def reset(self) -> dict[str, Any]:
        """Forget everything; `reset` is False where that is refused."""

    async def explain(self, call: Call) -> dict[str, Any] | None:
        """What a request would reuse; None where that cannot be known."""


class EmbeddedPrefix:
    """The embedded engine's pool."""

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend
        self._worker: EngineWorker = backend.worker

    async def blocks(self) -> list[dict[str, Any]]:
        return await self._worker.inspect(view.list_blocks)

    async def queue(self) -> list[dict[str, Any]]:
        return await self._worker.inspect(view.eviction_queue)

    async def chains(self) -> list[dict[str, Any]]:
        found = await self._worker.inspect(view.chains)
        return [_begins(chain, self._text(chain["first_tokens"])) for chain in found]

    async def show(self, name: str) -> dict[str, Any] | None:
        if not name.isdigit():
            raise InvalidRequest(f"blocks of the embedded engine have numbers, not {name!r}: blocks ls lists them")
        block = await self._worker.inspect(lambda manager: view.show_block(manager, int(name)))
        return block and block | {"text": self._text(block["tokens"])}

    async def stats(self) -> dict[str, Any]:
        return await self._worker.inspect(view.stats)

    async def reset(self) -> dict[str, Any]:
        return await self._worker.inspect(_reset)

    async def explain(self, call: Call) -> dict[str, Any] | None:
        request = self._backend.request(call)
        asked = CacheRequest("explain", request.tokens, salt=request.salt)
        found = await self._worker.inspect(lambda manager: view.match(manager, asked))
        return {
            "prompt_tokens": found.prompt_tokens,
            "matched_tokens": found.matched_tokens,
            "blocks": found.blocks,
            "tiers": await self._worker.tier_match(asked, found.matched_tokens),
            "divergence": spelled(found.divergence, self._text),
        }

    def _text(self, tokens: Sequence[int] | None) -> str:
        return "".join(map(self._worker.tokenizer.token_text, tokens or ()))


class NoPrefix:
    """An upstream that does not tell what it holds."""

    def _refuse(self) -> NoPrefixCache:
        return NoPrefixCache(
            "the prefix cache belongs to the upstream: give --kv-events to see into a vLLM or SGLang server that publishes"
            " its events"
        )

    async def blocks(self) -> list[dict[str, Any]]:
        raise self._refuse()

    async def queue(self) -> list[dict[str, Any]]:
        raise self._refuse()

    async def chains(self) -> list[dict[str, Any]]:
        raise self._refuse()

    async def show(self, name: str) -> dict[str, Any] | None:
        raise self._refuse()

    async def stats(self) -> dict[str, Any]:
        raise self._refuse()

    async def reset(self) -> dict[str, Any]:
        raise self._refuse()

    async def explain(self, call: Call) -> dict[str, Any] | None:
        return None


def spelled(divergence: Divergence | None, text: Callable[[Sequence[int]], str]) -> dict[str, Any] | None:
    """A divergence in text."""
    if divergence is None:
        return None
    return {
        "position": divergence.position,
        "cached": text(divergence.cached),
        "prompt": text(divergence.prompt),
        "context": text(divergence.before),
    }


def _begins(chain: dict[str, Any], text: str) -> dict[str, Any]:
    return {name: value for name, value in chain.items() if name != "first_tokens"} | {"begins": text}


def _reset(manager: KVCacheManager) -> dict[str, Any]:
    figures = view.stats(manager)
    return {"reset": manager.reset_prefix_cache(), "pinned": figures["pinned"], "used": figures["used"]}
