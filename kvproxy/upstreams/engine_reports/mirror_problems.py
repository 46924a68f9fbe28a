"""What is wrong between an engine and its mirror: each thing in one sentence that names the fix, and one line of the log."""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from kvproxy.settings import UpstreamServer
from kvproxy.upstreams.engine_reports.metrics import EngineFigures
from kvproxy.upstreams.engine_reports.prefix_reuse import ReuseFigures

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror

Trouble = Literal["events", "silent", "replay", "recipe", "restart", "wrong"]

PATIENCE = 10.0
"""Seconds after which events that do not come are no matter of a start any more."""
TELLING = 600.0
"""Seconds for which a restart is told."""
_SMALL = 64
"""Prompt tokens of a request that may leave no full block behind."""
_MUCH = 1000
"""Prompt tokens computed without an event that are no accident."""
_CONFIG = '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", ...}\', see docs/mirror.md'
_log = logging.getLogger("kvproxy")


class Watch:
    """Watches one engine.

    Args:
        server: what we were told of it.
        mirror: follows its events; None where it has none, and nothing can be wrong.
        clock: seconds that only rise.
    """

    def __init__(
        self, server: UpstreamServer, mirror: "Mirror | None", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._mirror = mirror
        self._clock = clock
        self._computed = 0
        self._heard = 0
        self._quiet_since = self._away_since = clock()
        self._restarts = 0
        self._restarted: float | None = None
        self._known: frozenset[Trouble] = frozenset()

    def computed(self, tokens: int, *, reported: bool) -> None:
        """The engine answered a request.

        Args:
            tokens: of its prompt, those that were not reused.
            reported: whether the engine said so. A guess counts only while no event has ever come: a prompt that is reused
                as a whole leaves none.
        """
        if reported or not self._heard:
            self._computed += max(0, tokens - _SMALL)

    def look(self, *, up: bool, figures: EngineFigures | None, reuse: dict[str, ReuseFigures]) -> list[str]:
        """What is wrong now; what is new since the last look is logged.

        Args:
            up: whether the engine answers.
            figures: what it says of itself.
            reuse: predictions beside reports, by model.
        """
        if self._mirror is None:
            return []
        self._count(self._mirror)
        found = self._find(self._mirror, up=up, figures=figures, reuse=reuse)
        for trouble in found.keys() - self._known:
            _log.warning("%s: %s", self._server.url, found[trouble])
        self._known = frozenset(found)
        return list(found.values())

    def _count(self, mirror: "Mirror") -> None:
        """Take over what came in since the last look."""
        now, streams = self._clock(), mirror.streams()
        heard = sum(stream.batches + stream.duplicates + stream.malformed for stream in streams)
        if heard != self._heard or not self._computed:
            self._heard, self._computed, self._quiet_since = heard, 0, now
        if all(stream.connected for stream in streams):
            self._away_since = now
        restarts = sum(stream.restarts for stream in streams)
        if restarts > self._restarts:
            self._restarts, self._restarted = restarts, now

    def _find(
        self, mirror: "Mirror", *, up: bool, figures: EngineFigures | None, reuse: dict[str, ReuseFigures]
    ) -> dict[Trouble, str]:
        found: dict[Trouble, str] = {}
        now, server = self._clock(), self._server
        if up and now - self._away_since > PATIENCE:
            found["events"] = f"nothing publishes at {server.kv_events}: start it with {_CONFIG}, or correct kv_events"
        elif self._computed > _MUCH and now - self._quiet_since > PATIENCE:
            found["silent"] = _silent(server, figures)
        if any(stream.replay_fails for stream in mirror.streams()):
            found["replay"] = (
                f"its replay port {server.kv_replay} does not answer: correct kv_replay, or set replay_endpoint in its"
                " --kv-events-config; until then what we missed stays unknown"
            )
        recipe = _recipe(server, mirror, figures)
        if recipe is not None:
            found["recipe"] = recipe
        if self._restarted is not None and now - self._restarted < TELLING:
            found["restart"] = (
                f"it restarted {now - self._restarted:.0f} s ago, and its prefix cache began empty: look at its log, if"
                " nobody restarted it"
            )
        for model, told in reuse.items():
            if told.errs:
                found["wrong"] = (
                    f"its mirror errs: {told.too_high} of {told.predictions} predictions for {model} promised more than was"
                    " reused; kvproxy blocks reset begins anew, and kv_replay keeps what is lost on the way"
                )
        return found


def _silent(server: UpstreamServer, figures: EngineFigures | None) -> str:
    if figures is not None and figures.prefix_caching is False:
        return "its prefix cache is off, so it publishes nothing: start it with --enable-prefix-caching"
    topic = f", or correct kv_topic, which lets only topics pass that begin with {server.kv_topic!r}"
    return f"it answers requests and publishes no events: start it with {_CONFIG}{topic if server.kv_topic else ''}"


def _recipe(server: UpstreamServer, mirror: "Mirror", figures: EngineFigures | None) -> str | None:
    told = None if figures is None else figures.hash_algorithm
    if told is not None and told != server.hash_algorithm:
        return f"it names blocks by {told}, and we were told {server.hash_algorithm}: set hash_algorithm to {told}"
    # SGLang has a way of its own, for which there is no setting.
    if mirror.named_alike() is not False or (figures is not None and figures.kind == "sglang"):
        return None
    return (
        f"it names blocks otherwise than {server.hash_algorithm} with our seed: set hash_algorithm to its"
        " --prefix-caching-hash-algo, and hash_seed to its PYTHONHASHSEED; until then prompts are compared token by token"
    )
