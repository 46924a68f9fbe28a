"""Pins for engines without pins: if an engine evicts blocks of a pinned chain, the chain is computed again.

The engine generates one token after the chain, so it computes the evicted blocks only. A budget limits the computed tokens per
minute, and a chain that is evicted again waits longer each time.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvproxy.apis.json import JsonObject, as_object
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.blocks.rows import PinRow
from kvproxy.errors import InvalidRequest, KvproxyError, UpstreamError
from kvproxy.mirror.hashed_prompt import HashedPrompt
from kvproxy.mirror.match import compute_hashes
from kvproxy.token_bucket import TokenBucket
from kvproxy.upstreams.engine import FleetEngine
from kvproxy.upstreams.fleet import Fleet

_INTERVAL = 1.0
"""Seconds between two checks of all pins."""
_FIRST_PAUSE = 2.0
"""Seconds until the events of a computed chain must arrive; doubles each time the chain is evicted again."""
_MAX_PAUSE = 120.0
_MAX_PINS = 10_000
_log = logging.getLogger("kvproxy")


@dataclass(slots=True)
class _RecomputedPin:
    """A pinned chain: `tokens` fill whole blocks; `prompt` has one more token, which a lookup leaves to compute."""

    tokens: list[int]
    prompt: HashedPrompt
    model: str
    salt: str | None
    expires: float | None
    cached: int = 0
    computed: int = 0
    pause: float = field(default_factory=lambda: _FIRST_PAUSE)
    next_attempt: float = 0.0
    error: str | None = None


class UpstreamPins:
    """Pins on the engines that publish events. Each chain is kept by the engine that caches most of it."""

    def __init__(self, fleet: Fleet, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._budget = TokenBucket(per_minute, clock)
        self._clock = clock
        self._pins: dict[str, _RecomputedPin] = {}
        self._is_running = False

    def add(self, name: str, tokens: list[int], model: str, salt: str | None, ttl: float | None) -> int:
        """Pin a chain, or replace a pin of the same name; return the number of tokens in whole blocks.

        Raises InvalidRequest if the chain fills no block, or there are too many pins.
        """
        size = max((mirror.report().block_size or 0 for _, mirror in self._fleet.mirrored()), default=0)
        if not size:
            raise InvalidRequest("no block of the upstream is known yet: send a request, then pin it")
        whole = tokens[: len(tokens) // size * size]
        if not whole:
            raise InvalidRequest(f"the prompt is shorter than a block of {size} tokens: pin a longer prompt")
        if name not in self._pins and len(self._pins) >= _MAX_PINS:
            raise InvalidRequest(f"there are {_MAX_PINS:,} pins already: remove one with blocks unpin")
        expires = None if ttl is None else self._clock() + ttl
        self._pins[name] = _RecomputedPin(whole, HashedPrompt([*whole, 0], salt=salt), model, salt, expires)
        if not self._is_running:
            self._is_running = True
            self._fleet.run(self._run())
        return len(whole)

    def remove(self, name: str) -> bool:
        return self._pins.pop(name, None) is not None

    def rows(self) -> list[PinRow]:
        self._expire()
        now = self._clock()
        return [
            PinRow(
                name,
                (),
                seconds_left=None if pin.expires is None else max(0.0, pin.expires - now),
                tokens=len(pin.tokens),
                held=pin.cached,
                computed=pin.computed,
                error=pin.error,
            )
            for name, pin in self._pins.items()
        ]

    def _expire(self) -> None:
        now = self._clock()
        for name in [name for name, pin in self._pins.items() if pin.expires is not None and pin.expires <= now]:
            del self._pins[name]

    async def _run(self) -> None:
        while True:
            self._expire()
            for name, pin in list(self._pins.items()):
                try:
                    await self._check(name, pin)
                except Exception as error:
                    # A failure affects one pin only.
                    _log.error("pin %s could not be checked: %s", name, error or type(error).__name__)
            await asyncio.sleep(_INTERVAL)

    async def _check(self, name: str, pin: _RecomputedPin) -> None:
        """Compute the evicted part of a chain, unless it must wait."""
        engines = [(engine, mirror) for engine, mirror in self._fleet.mirrored() if engine.health.is_sound]
        if not engines:
            pin.cached, pin.error = 0, "no engine that publishes events is available"
            return
        await compute_hashes(pin.prompt, [mirror for _, mirror in engines])
        pin.cached, engine = max(
            ((mirror.matched_tokens(pin.prompt) or 0, engine) for engine, mirror in engines), key=lambda each: each[0]
        )
        missing, now = len(pin.tokens) - pin.cached, self._clock()
        if missing <= 0:
            if now > pin.next_attempt:
                pin.pause = _FIRST_PAUSE
            pin.error = None
        elif now < pin.next_attempt:
            return
        elif self._budget.level < min(missing, self._budget.per_minute):
            # A chain above the size of the bucket requires a full bucket.
            pin.error = "the budget is spent: raise routing.pinned_tokens_per_minute, or remove a pin"
        else:
            await self._compute(name, pin, engine, missing)

    async def _compute(self, name: str, pin: _RecomputedPin, engine: FleetEngine, missing: int) -> None:
        pin.next_attempt = self._clock() + pin.pause
        if pin.computed and pin.pause > _FIRST_PAUSE:
            pin.error = "the engine evicts the chain again soon: its pool is too small for all pins"
        pin.pause = min(_MAX_PAUSE, 2 * pin.pause)
        body: JsonObject = {"model": pin.model, "prompt": [*pin.tokens], "max_tokens": 1, "temperature": 0}
        if pin.salt is not None:
            body["cache_salt"] = pin.salt
        try:
            status, reply = await engine.client.call("POST", "/v1/completions", body)
            if status != 200:
                raise UpstreamError(f"{engine.url} answered {status} to /v1/completions with the pin's tokens")
            usage = reported_reuse(as_object(reply))
        except (KvproxyError, ValueError) as error:
            pin.error = str(error)
            return
        cost = missing if usage is None else usage.prompt_tokens - usage.cached_tokens
        self._budget.take(cost)
        pin.computed += cost
        _log.info("pin %s: %s computed %d tokens again", name, engine.url, cost)
