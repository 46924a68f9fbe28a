"""One upstream of several: how to reach it, what it holds, how busy and how well it is."""

import asyncio
from typing import TYPE_CHECKING, Any

from kvproxy.blocks.digest import BlockHasher
from kvproxy.errors import KvproxyError, SettingsError
from kvproxy.mirror.match import Prompt
from kvproxy.proxy.upstream import UpstreamBackend
from kvproxy.routing.choose import Candidate
from kvproxy.routing.health import Health
from kvproxy.routing.load import Load
from kvproxy.settings import RoutingSettings, UpstreamServer, UpstreamSettings

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror


class FleetEngine:
    """An upstream with its mirror, load and health.

    Args:
        server: its URL, weight and events.
        forward: timeouts, connections and key.
        routing: when it is ejected.

    Raises:
        SettingsError: an events endpoint is none.
    """

    def __init__(self, server: UpstreamServer, forward: UpstreamSettings, routing: RoutingSettings) -> None:
        self.url = server.url.rstrip("/").removesuffix("/v1")
        self.weight = server.weight
        self.backend = UpstreamBackend(server.url, forward)
        self.health = Health(routing.eject_after)
        self._probe_timeout = routing.health_timeout
        self.load = Load()
        self.sent = 0
        self.mirror = _mirror(server)

    async def start(self) -> None:
        """Open connections and follow the engine's events."""
        await self.backend.start()
        if self.mirror is not None:
            await self.mirror.start()

    async def close(self) -> None:
        """Close them."""
        if self.mirror is not None:
            await self.mirror.close()
        await self.backend.close()

    async def probe(self) -> None:
        """Ask whether it is there: any answer that is not a server error will do, since not all have the route."""
        try:
            async with asyncio.timeout(self._probe_timeout):
                reply = await self.backend.forward("GET", "/health", {}, b"")
                await reply.close()
        except TimeoutError:
            self.health.failed(f"/health gave no answer in {self._probe_timeout:g} s")
        except KvproxyError as error:
            self.health.failed(error.message)
        else:
            if reply.status < 500:
                self.health.succeeded()
            else:
                self.health.failed(f"/health answered {reply.status}")

    def candidate(self, prompt: Prompt | None) -> Candidate:
        """How it would fare with a prompt."""
        matched = None if self.mirror is None or prompt is None else self.mirror.matched_tokens(prompt)
        return Candidate(self.url, matched, self.load.tokens, self.weight)

    def status(self) -> dict[str, Any]:
        """What `kvproxy upstreams` shows."""
        return {
            "url": self.url,
            "state": self.health.state,
            "weight": self.weight,
            "requests": self.load.requests,
            "load": round(self.load.tokens),
            "sent": self.sent,
            "failures": self.health.failures,
            "ejections": self.health.ejections,
            "error": self.health.error,
            "cached_blocks": None if self.mirror is None else self.mirror.stats()["cached"],
            "complete": None if self.mirror is None else self.mirror.complete,
            "streams": [] if self.mirror is None else self.mirror.status(),
        }


def _mirror(server: UpstreamServer) -> "Mirror | None":
    if server.kv_events is None:
        return None
    from kvproxy.mirror.mirror import Mirror

    hasher = BlockHasher(server.hash_algorithm, server.hash_seed)
    try:
        return Mirror(server.kv_events, server.kv_replay, hasher=hasher, topic=server.kv_topic)
    except ValueError as error:
        raise SettingsError(f"setting kv_events of {server.url}: {error}", param="kv_events") from None
