"""Chains that are kept on engines which evict as they like: whenever the mirrors show that one lost blocks, it is computed again.

The engine is asked for one token after the chain, so it computes what it lost and nothing else. A budget bounds the prompt
tokens that this may cost a minute; a chain that is lost again at once waits longer each time.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from kvproxy.apis.json import as_object, loads
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.blocks.rows import PinRow
from kvproxy.errors import InvalidRequest, KvproxyError, UpstreamError
from kvproxy.mirror.match import prepare
from kvproxy.mirror.prompt import Prompt
from kvproxy.upstreams.engine import FleetEngine
from kvproxy.upstreams.fleet import Fleet


class Budget:
    """Fills evenly, and holds a minute's tokens at most.

    Args:
        per_minute: tokens.
        clock: seconds that only rise.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = float(per_minute)
        self._clock = clock
        self._left = self._most
        self._at = clock()

    def allows(self, tokens: int) -> bool:
        """Whether so many tokens may be computed now. A chain longer than a minute's tokens waits until none are owed."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._most / 60)
        self._at = now
        return self._left >= min(tokens, self._most)

    def spend(self, tokens: int) -> None:
        """They were computed."""
        self._left -= tokens


_INTERVAL = 1.0
"""Seconds between two looks at the mirrors."""
_PATIENCE = 2.0
"""Seconds that the events of a computed chain may take; twice as long after each time that it was lost again."""
_LONGEST = 120.0
_MOST = 10_000
_log = logging.getLogger("kvproxy")


@dataclass(slots=True)
class _Pin:
    """A chain: `tokens` fill whole blocks, and `prompt` has one more, since a look-up leaves one token to compute."""

    tokens: list[int]
    prompt: Prompt
    model: str
    salt: str | None
    until: float | None
    held: int = 0
    computed: int = 0
    patience: float = _PATIENCE
    next: float = 0.0
    error: str | None = None


class UpstreamPins:
    """Pins over all engines that publish events. Each chain is kept on one of them: the one that holds most of it.

    Args:
        fleet: the engines.
        per_minute: prompt tokens that may be computed a minute.
        clock: seconds that only rise.
    """

    def __init__(self, fleet: Fleet, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._budget = Budget(per_minute, clock)
        self._clock = clock
        self._pins: dict[str, _Pin] = {}
        self._is_running = False

    def add(self, name: str, tokens: list[int], model: str, salt: str | None, ttl: float | None) -> int:
        """Keep a chain from now on, in place of the one that had the name.

        Returns:
            How many tokens are kept: those that fill whole blocks.

        Raises:
            InvalidRequest: it fills no block, or there are too many pins.
        """
        mirrors = [engine.mirror for engine in self._fleet.engines.values() if engine.mirror is not None]
        size = max((mirror.figures().block_size or 0 for mirror in mirrors), default=0)
        if not size:
            raise InvalidRequest("the upstream has not told of any block yet: send a request, then pin it")
        whole = tokens[: len(tokens) // size * size]
        if not whole:
            raise InvalidRequest(f"the prompt is shorter than a block of {size} tokens: there is nothing to keep")
        if name not in self._pins and len(self._pins) >= _MOST:
            raise InvalidRequest(f"{_MOST:,} chains are pinned already: unpin others")
        until = None if ttl is None else self._clock() + ttl
        self._pins[name] = _Pin(whole, Prompt([*whole, 0], salt=salt), model, salt, until)
        if not self._is_running:
            self._is_running = True
            self._fleet.run(self._keep())
        return len(whole)

    def remove(self, name: str) -> bool:
        """Keep a chain no longer; False where there is none of that name."""
        return self._pins.pop(name, None) is not None

    def rows(self) -> list[PinRow]:
        """All pins."""
        self._expire()
        now = self._clock()
        return [
            PinRow(
                name, (), None if pin.until is None else max(0.0, pin.until - now), len(pin.tokens), pin.held, pin.computed,
                pin.error,
            )
            for name, pin in self._pins.items()
        ]  # fmt: skip

    def _expire(self) -> None:
        now = self._clock()
        for name in [name for name, pin in self._pins.items() if pin.until is not None and pin.until <= now]:
            del self._pins[name]

    async def _keep(self) -> None:
        while True:
            self._expire()
            for name, pin in list(self._pins.items()):
                try:
                    await self._look(name, pin)
                except Exception as error:
                    # One chain must not keep the others from being looked after.
                    _log.error("the pin %s could not be looked after: %s", name, error or type(error).__name__)
            await asyncio.sleep(_INTERVAL)

    async def _look(self, name: str, pin: _Pin) -> None:
        """See what is left of a chain, and have the rest computed where that is due and allowed."""
        engines = [
            engine for engine in self._fleet.engines.values() if engine.mirror is not None and engine.health.sound
        ]
        if not engines:
            pin.held, pin.error = 0, "no engine that publishes events is up"
            return
        recipes = [recipe for engine in engines if engine.mirror is not None for recipe in engine.mirror.recipes()]
        await asyncio.to_thread(prepare, pin.prompt, recipes)
        best = max(engines, key=lambda engine: engine.candidate(pin.prompt).matched or 0)
        pin.held = best.candidate(pin.prompt).matched or 0
        lost, now = len(pin.tokens) - pin.held, self._clock()
        if lost <= 0:
            if now > pin.next:
                # It has been kept for a while, so the next loss is a new one.
                pin.patience = _PATIENCE
            pin.error = None
        elif now < pin.next:
            return
        elif not self._budget.allows(lost):
            pin.error = "it waits for the budget: raise routing.pinned_tokens_per_minute, or unpin others"
        else:
            await self._compute(name, pin, best, lost)

    async def _compute(self, name: str, pin: _Pin, engine: FleetEngine, lost: int) -> None:
        pin.next = self._clock() + pin.patience
        if pin.computed and pin.patience > _PATIENCE:
            pin.error = "it is lost again soon after it was computed: the engine's pool is too small for what is pinned"
        pin.patience = min(_LONGEST, 2 * pin.patience)
        body = {"model": pin.model, "prompt": pin.tokens, "max_tokens": 1, "temperature": 0}
        if pin.salt is not None:
            body["cache_salt"] = pin.salt
        try:
            headers = {"content-type": "application/json"}
            reply = await engine.upstream.forward("POST", "/v1/completions", headers, orjson.dumps(body))
            said = await reply.body()
            if reply.status != 200:
                raise UpstreamError(f"{engine.url} answered {reply.status} to /v1/completions with the chain's tokens")
            told = reported_reuse(as_object(loads(said)))
        except (KvproxyError, ValueError) as error:
            pin.error = str(error)
            return
        cost = lost if told is None else told[0] - told[1]
        self._budget.spend(cost)
        pin.computed += cost
        _log.info("pin %s: %d tokens computed again by %s", name, cost, engine.url)
