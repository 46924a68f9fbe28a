"""One upstream with its mirror, load and health."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvproxy.backends.protocol import Taker
from kvproxy.backends.upstreams.reuse import ReuseFigures
from kvproxy.backends.upstreams.upstream import Upstream
from kvproxy.blocks.digest import BlockHasher
from kvproxy.errors import KvproxyError, SettingsError
from kvproxy.mirror.prompt import Prompt
from kvproxy.mirror.status import StreamStatus
from kvproxy.routing.choose import Candidate
from kvproxy.routing.health import Health
from kvproxy.routing.load import Load
from kvproxy.settings import RoutingSettings, UpstreamServer, UpstreamSettings
from kvproxy.settings.limits import LimitSettings

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror

_MOST_MODELS = 64
_OTHERS = "others"


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


class FleetEngine:
    """An upstream with its mirror, load and health.

    Args:
        server: its URL, keys, weight and events.
        forward: timeouts and connections.
        routing: when it is ejected.
        limits: how many requests may wait for it.

    Raises:
        SettingsError: an events endpoint is none.
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
        self.load = Load()
        self.sent = 0
        self.mirror = _mirror(server)
        self.reuse: dict[str, ReuseFigures] = {}

    async def start(self) -> None:
        """Open connections and follow the engine's events."""
        self.upstream.open()
        if self.mirror is not None:
            await self.mirror.start()

    async def close(self) -> None:
        """Close them."""
        if self.mirror is not None:
            await self.mirror.close()
        await self.upstream.close()

    async def probe(self) -> None:
        """Ask whether it is there: any answer that is not a server error will do, since not all have the route."""
        try:
            async with asyncio.timeout(self._probe_timeout):
                status = await self.upstream.probe()
        except TimeoutError:
            self.health.failed(f"/health gave no answer in {self._probe_timeout:g} s")
        except KvproxyError as error:
            self.health.failed(error.message)
        else:
            if status < 500:
                self.health.succeeded()
            else:
                self.health.failed(f"/health answered {status}")

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
        )

    def taker(self, predicted: int | None) -> Taker:
        """Goes with an answer, so that what it reports comes back here."""

        def reported(model: str, prompt_tokens: int, cached_tokens: int) -> None:
            # A client that makes names up must not fill the memory.
            name = model if model in self.reuse or len(self.reuse) < _MOST_MODELS else _OTHERS
            self.reuse.setdefault(name, ReuseFigures()).add(prompt_tokens, cached_tokens, predicted)

        return Taker(self.url, predicted, reported)


def _mirror(server: UpstreamServer) -> "Mirror | None":
    if server.kv_events is None:
        return None
    from kvproxy.mirror.mirror import Mirror

    hasher = BlockHasher(server.hash_algorithm, server.hash_seed)
    try:
        return Mirror(server.kv_events, server.kv_replay, hasher=hasher, topic=server.kv_topic)
    except ValueError as error:
        raise SettingsError(f"setting kv_events of {server.url}: {error}", param="kv_events") from None
