"""One engine as its KV events show it: all its ranks' pools, and how well they are known."""

import re

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.blocks.rows import PoolReport
from kvproxy.mirror import view
from kvproxy.mirror.groups import hash_size
from kvproxy.mirror.match import MirrorMatch, Recipe, match, matched_tokens
from kvproxy.mirror.pool import MirroredBlock, MirroredPool
from kvproxy.mirror.prompt import Prompt
from kvproxy.mirror.state import MirrorState, PoolKey
from kvproxy.mirror.status import StreamStatus
from kvproxy.mirror.subscriber import Subscriber


def named_alike(state: MirrorState, hasher: BlockHasher) -> bool | None:
    """Compare the name of a block that begins a prompt; None while there is none whose tokens were published."""
    for pools in state.ranks().values():
        first = next((block for pool in pools if (block := _beginning(pool)) is not None), None)
        if first is not None:
            digest = hasher.chain(list(first.tokens), hash_size(pools))[-1]
            return first.hash in (digest, event_hash(digest))
    return None


def _beginning(pool: MirroredPool) -> MirroredBlock | None:
    """A full block that begins a prompt, and whose tokens alone name it."""
    begins = (block for block in pool.children(None) if block.extra is None)
    return next((block for block in begins if len(block.tokens) == pool.block_size), None)


_TCP = re.compile(r"(tcp://[^\s]+:)(\d+)(?:-(\d+))?")


def expand(endpoint: str) -> list[str]:
    """The sockets that an endpoint names, one a rank; engines give each rank the next port.

    Raises:
        ValueError: it names none.
    """
    if re.fullmatch(r"(ipc|inproc)://\S+", endpoint):
        return [endpoint]
    found = _TCP.fullmatch(endpoint)
    if found is None:
        raise ValueError(f"{endpoint!r} is no endpoint: write tcp://host:5557, or tcp://host:5557-5560 for four ranks")
    first, last = int(found[2]), int(found[3] or found[2])
    if not first <= last <= 65_535 or last - first > 1023:
        raise ValueError(f"{endpoint!r} names no range of ports: write the lower one first")
    return [f"{found[1]}{port}" for port in range(first, last + 1)]


class Mirror:
    """Follows an engine.

    Args:
        endpoint: where it publishes, see `endpoints`.
        replay: where it answers replay requests, likewise, one for each publisher.
        hasher: names blocks as the engine does.
        topic: beginning of the topics to follow.
        idle: seconds of silence after which it is asked whether anything was missed.

    Raises:
        ValueError: an endpoint is none, or there are not as many replay sockets as publishers.
    """

    def __init__(
        self,
        endpoint: str,
        replay: str | None = None,
        *,
        hasher: BlockHasher | None = None,
        topic: str = "",
        idle: float = 10.0,
    ) -> None:
        endpoints = expand(endpoint)
        replays: list[str] | list[None] = [None] * len(endpoints) if replay is None else expand(replay)
        if len(replays) != len(endpoints):
            raise ValueError(f"{endpoint!r} names {len(endpoints)} sockets and {replay!r} {len(replays)}: one for each")
        self.hasher = hasher or BlockHasher()
        self.subscribers = [
            Subscriber(one, other, topic=topic, idle=idle) for one, other in zip(endpoints, replays, strict=True)
        ]

    async def start(self) -> None:
        """Follow from now on.

        Raises:
            zmq.ZMQError: an endpoint is taken, or cannot be listened to; nothing is followed then.
        """
        try:
            for subscriber in self.subscribers:
                await subscriber.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop following."""
        for subscriber in self.subscribers:
            await subscriber.close()

    def state(self) -> MirrorState:
        """All pools, whichever socket told of them; none of an engine that is gone, or may have been replaced."""
        merged = MirrorState()
        for index, subscriber in enumerate(self.subscribers):
            if not subscriber.is_believed:
                continue
            if len(self.subscribers) == 1:
                return subscriber.state
            for key, pool in subscriber.state.pools.items():
                rank = index if key.rank is None else key.rank
                merged.pools[PoolKey(rank, key.medium, key.group)] = pool
        return merged

    def before_reset(self) -> tuple[int, ...]:
        """A mark to take before the engine is asked to reset its cache; `cleared` needs it."""
        return tuple(subscriber.sequencer.resets.mark() for subscriber in self.subscribers)

    def cleared(self, mark: tuple[int, ...]) -> None:
        """The engine confirmed a reset of its cache: show it empty now.

        vLLM publishes the reset only with its next step. Until then, what still arrives is from before the reset and counts
        for nothing. A stream that told of a reset after the mark was taken is up to date already.

        Args:
            mark: from `before_reset`, taken before the engine was asked.
        """
        for subscriber, known in zip(self.subscribers, mark, strict=True):
            subscriber.sequencer.cleared(known)

    def streams(self) -> list[StreamStatus]:
        """How each stream fares."""
        return [subscriber.status() for subscriber in self.subscribers]

    @property
    def complete(self) -> bool:
        """Whether nothing is missing since the engine's start, and nothing can be: the streams are open."""
        return all(
            one.is_connected and one.sequencer.complete and one.sequencer.wanted is None for one in self.subscribers
        )

    def figures(self) -> PoolReport:
        """Figures of all pools."""
        return view.stats(self.state())

    def named_alike(self) -> bool | None:
        """Whether the engine names blocks by the recipe that we were told; None while nothing tells."""
        return named_alike(self.state(), self.hasher)

    def recipes(self) -> list[Recipe]:
        """How the engine names blocks: what `prepare` needs. Cheap; on the event loop."""
        sizes = {hash_size(pools) for pools in self.state().ranks().values()}
        return [(self.hasher, size) for size in sorted(sizes)]

    def match(self, prompt: Prompt) -> tuple[int | None, MirrorMatch] | None:
        """The rank that holds most of a prompt, and what it holds; None before the first event."""
        ranks = self.state().ranks()
        found = [(rank, match(pools, prompt, self.hasher)) for rank, pools in ranks.items()]
        return max(found, key=lambda item: item[1].matched_tokens, default=None)

    def matched_tokens(self, prompt: Prompt) -> int:
        """Tokens of a prompt that its best rank holds. Fast once the prompt is prepared; on the event loop."""
        ranks = self.state().ranks().values()
        return max((matched_tokens(pools, prompt, self.hasher) for pools in ranks), default=0)
