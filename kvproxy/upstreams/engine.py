"""One upstream with its mirror, load and health."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvproxy.apis.request import ApiRequest
from kvproxy.backends.protocol import Relayed, ServingUpstream
from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.errors import KvproxyError, SettingsError
from kvproxy.mirror.prompt import Prompt
from kvproxy.mirror.status import StreamStatus
from kvproxy.settings import RoutingSettings, UpstreamServer, UpstreamSettings
from kvproxy.settings.limits import LimitSettings
from kvproxy.upstreams.client import Upstream
from kvproxy.upstreams.engine_reports.metrics import EngineFigures, read_figures
from kvproxy.upstreams.engine_reports.mirror_problems import Watch
from kvproxy.upstreams.engine_reports.prefix_reuse import ReuseFigures
from kvproxy.upstreams.health import Health
from kvproxy.upstreams.routing import Candidate, Load

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror
    from kvproxy.upstreams.llama.server import LlamaServer
    from kvproxy.upstreams.llama.slots import SlotsStatus

_log = logging.getLogger("kvproxy")
_MOST_MODELS = 64
_OTHERS = "others"
_LONGEST_PAGE = 4 * 2**20
_SELDOM = 300.0
"""Seconds until a server that has no figures is asked again."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What `kvproxy upstreams` shows of one.

    Attributes:
        state: `up`, `draining` or `ejected`.
        requests: under way.
        load: tokens of work that it has still to do.
        sent: requests since the start.
        failures: in a row.
        error: what went wrong last; None after a success.
        cached_blocks: blocks that its mirror knows; None without a mirror, like the fields below.
        complete: whether the mirror knows everything.
        reuse: what it said that it reused, by model.
        figures: what it says of itself; None where it does not tell.
        notes: what is wrong between it and us, a sentence each, with its fix.
        advice: what would make it better, a sentence each.
        slots: figures of a llama.cpp server's slots; None for any other server.
    """

    url: str
    state: str
    weight: float
    requests: int
    load: int
    sent: int
    failures: int
    ejections: int
    error: str | None
    cached_blocks: int | None
    complete: bool | None
    streams: tuple[StreamStatus, ...]
    reuse: dict[str, ReuseFigures]
    figures: EngineFigures | None
    notes: tuple[str, ...]
    advice: tuple[str, ...]
    slots: "SlotsStatus | None"


class FleetEngine:
    """An upstream with its mirror, load and health.

    Args:
        server: its URL, keys, weight and events.
        forward: timeouts and connections.
        routing: when it is ejected.
        limits: how many requests may wait for it.

    Raises:
        SettingsError: an events endpoint is none.

    Attributes:
        llama: its slots, should it be llama.cpp; None where nobody asks.
    """

    def __init__(
        self,
        server: UpstreamServer,
        forward: UpstreamSettings,
        routing: RoutingSettings,
        limits: LimitSettings = LimitSettings(),
    ) -> None:
        self.url = server.url
        self.weight = server.weight
        self.upstream = Upstream(server, forward, limits)
        self.health = Health(routing.eject_after)
        self._probe_timeout = routing.health_timeout
        self._reported = False
        self.load = Load()
        self.sent = 0
        self.mirror = _mirror(server)
        self.reuse: dict[str, ReuseFigures] = {}
        self._watch = Watch(server, self.mirror)
        self._notes: list[str] = []
        self._figures: tuple[float, EngineFigures] | None = None
        self._ask_again = 0.0
        self.llama: LlamaServer | None = None

    async def start(self) -> None:
        """Open connections and follow the engine's events."""
        self.upstream.open()
        if self.mirror is not None:
            await self.mirror.start()

    async def close(self) -> None:
        """Close them."""
        if self.mirror is not None:
            await self.mirror.close()
        if self.llama is not None:
            await self.llama.close()
        await self.upstream.close()

    async def probe(self) -> None:
        """Ask whether it is there: any answer that is not a server error will do, since not all have the route."""
        try:
            async with asyncio.timeout(self._probe_timeout):
                status = await self.upstream.probe()
        except TimeoutError:
            self._probed(f"/health gave no answer in {self._probe_timeout:g} s")
        except KvproxyError as error:
            self._probed(error.message)
        else:
            self._probed(None if status < 500 else f"/health answered {status}")
        if self.llama is not None and not self.llama.asked and self.health.error is None:
            await self.llama.recognise()

    def _probed(self, failure: str | None) -> None:
        if failure is None:
            if self._reported:
                self._reported = False
                _log.info("the upstream %s answers again", self.url)
            self.health.succeeded()
            return
        self.health.failed(failure)
        if not self._reported:
            self._reported = True
            _log.warning("the upstream %s does not answer: %s", self.url, failure)
        if self.llama is not None:
            # What comes back may be another server.
            self.llama.asked = False

    async def send(self, request: ApiRequest) -> Relayed:
        """Forward a request, to the slot that serves it best where the engine has slots."""
        placed = None if self.llama is None else await self.llama.place(request)
        if placed is None:
            return await self.upstream.send(request)
        try:
            reply = await self.upstream.send(placed.request)
        except BaseException:
            placed.gone()
            raise
        placed.follow(reply)
        reply.served_by = self.serving_upstream(placed.predicted, placed.work)
        return reply

    async def look(self) -> None:
        """Read what it says of itself, and see whether anything is wrong between it and us."""
        if time.monotonic() >= self._ask_again:
            try:
                async with asyncio.timeout(self._probe_timeout):
                    page = await self.upstream.page("/metrics", _LONGEST_PAGE)
                found = None if page is None else await asyncio.to_thread(read_figures, page.decode("utf-8", "replace"))
            except (TimeoutError, KvproxyError):
                pass  # What it said last grows old, which its age tells.
            except ValueError:
                self._ask_again = time.monotonic() + _SELDOM
            else:
                self._figures = None if found is None else (time.monotonic(), found)
                self._ask_again = 0.0 if found is not None else time.monotonic() + _SELDOM
        self._notes = self._watch.look(up=not self.health.failures, figures=self.figures(), reuse=self.reuse)

    def figures(self) -> EngineFigures | None:
        """What it said last of itself, with its age."""
        if self._figures is None:
            return None
        at, figures = self._figures
        return replace(figures, age=round(time.monotonic() - at, 1))

    def candidate(self, prompt: Prompt | None) -> Candidate:
        """How it would fare with a prompt whose digests are there already; see `mirror.match.prepare`."""
        matched = None if self.mirror is None or prompt is None else self.mirror.matched_tokens(prompt)
        return Candidate(self.url, matched, self.load.tokens, self.weight)

    def status(self) -> EngineStatus:
        """What `kvproxy upstreams` shows."""
        mirror = self.mirror
        return EngineStatus(
            url=self.url,
            state=self.health.state,
            weight=self.weight,
            requests=self.load.requests,
            load=round(self.load.tokens),
            sent=self.sent,
            failures=self.health.failures,
            ejections=self.health.ejections,
            error=self.health.error,
            cached_blocks=None if mirror is None else mirror.figures().cached,
            complete=None if mirror is None else mirror.complete,
            streams=() if mirror is None else tuple(mirror.streams()),
            reuse=self.reuse,
            figures=self.figures(),
            notes=(*self._notes, *(self.llama.notes() if self.llama else ())),
            advice=tuple(self.llama.advice()) if self.llama else (),
            slots=self.llama.status() if self.llama else None,
        )

    def serving_upstream(self, predicted: int | None, work: int) -> ServingUpstream:
        """Goes with an answer, so that what it reports comes back here.

        Args:
            predicted: tokens that it was expected to reuse; None where nobody knows.
            work: tokens that it was expected to compute.
        """
        self._watch.computed(work, reported=False)

        def reported(model: str, prompt_tokens: int, cached_tokens: int) -> None:
            # A client that makes names up must not fill the memory.
            name = model if model in self.reuse or len(self.reuse) < _MOST_MODELS else _OTHERS
            self.reuse.setdefault(name, ReuseFigures()).add(prompt_tokens, cached_tokens, predicted)
            self._watch.computed(prompt_tokens - cached_tokens, reported=True)

        return ServingUpstream(self.url, predicted, reported)


def _mirror(server: UpstreamServer) -> "Mirror | None":
    if server.kv_events is None:
        return None
    from kvproxy.mirror.mirror import Mirror

    hasher = BlockHasher(server.hash_algorithm, server.hash_seed)
    try:
        return Mirror(server.kv_events, server.kv_replay, hasher=hasher, topic=server.kv_topic)
    except ValueError as error:
        raise SettingsError(f"setting kv_events of {server.url}: {error}", param="kv_events") from None
