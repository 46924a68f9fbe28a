import re

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.blocks.row_types import PoolReport
from kvproxy.mirror import pool_rows
from kvproxy.mirror.apply_events import MirroredBlock, MirroredPool, MirrorState, PoolKey
from kvproxy.mirror.hashed_prompt import HashedPrompt
from kvproxy.mirror.mirrored_groups import hash_block_size
from kvproxy.mirror.prefix_match import CachedChains, MirrorMatch, chains_after_prefix, match_prefix
from kvproxy.mirror.stream_status import StreamStatus
from kvproxy.mirror.subscriber import EventSubscriber

_TCP = re.compile(r"(tcp://[^\s]+:)(\d+)(?:-(\d+))?")


def expand_endpoint(endpoint: str) -> list[str]:
    """Return one address for each port of `tcp://host:first-last`. Raises ValueError."""
    if re.fullmatch(r"(ipc|inproc)://\S+", endpoint):
        return [endpoint]
    found = _TCP.fullmatch(endpoint)
    if found is None:
        raise ValueError(
            f"{endpoint!r} is not an endpoint: use tcp://host:5557, or tcp://host:5557-5560 for four ranks"
        )
    first, last = int(found[2]), int(found[3] or found[2])
    if not first <= last <= 65_535 or last - first > 1023:
        raise ValueError(f"{endpoint!r} has an invalid range of ports: use at most 1,024 ports, the lowest first")
    return [f"{found[1]}{port}" for port in range(first, last + 1)]


class Mirror:
    """The prefix cache of one engine, rebuilt from the KV events of all its ranks.

    Args:
        endpoint: PUB sockets of the ranks, see `expand_endpoint`.
        replay: replay sockets of the ranks, in the same order; None if the engine has none.
        hasher: configured like the engine's block hashing.
        idle: seconds without a batch, after which a replay is requested, because the last batch may be lost.
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
        endpoints = expand_endpoint(endpoint)
        replays: list[str] | list[None] = [None] * len(endpoints) if replay is None else expand_endpoint(replay)
        if len(replays) != len(endpoints):
            raise ValueError(
                f"{endpoint!r} has {len(endpoints)} sockets and {replay!r} has {len(replays)}: use one for each"
            )
        self.hasher = hasher or BlockHasher()
        self.subscribers = [
            EventSubscriber(one, other, topic=topic, idle=idle) for one, other in zip(endpoints, replays, strict=True)
        ]

    async def start(self) -> None:
        try:
            for subscriber in self.subscribers:
                await subscriber.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for subscriber in self.subscribers:
            await subscriber.close()

    def state(self) -> MirrorState:
        """Return the pools of all ranks with a valid state; see `EventSubscriber.has_valid_state`."""
        merged = MirrorState()
        for index, subscriber in enumerate(self.subscribers):
            if not subscriber.has_valid_state:
                continue
            if len(self.subscribers) == 1:
                return subscriber.state
            for key, pool in subscriber.state.pools.items():
                rank = index if key.rank is None else key.rank
                merged.pools[PoolKey(rank, key.medium, key.group)] = pool
        return merged

    def num_resets(self) -> list[int]:
        return [subscriber.state.num_resets for subscriber in self.subscribers]

    def clear_after_reset(self, num_resets_before: list[int]) -> None:
        """Clear the pools after the engine has confirmed a reset, unless the ranks have published the reset as an event.

        vLLM publishes the event only after its response.

        Args:
            num_resets_before: result of `num_resets` before the request to reset.
        """
        for subscriber, num_resets in zip(self.subscribers, num_resets_before, strict=True):
            if subscriber.state.num_resets == num_resets:
                subscriber.state.clear_blocks()

    def streams(self) -> list[StreamStatus]:
        return [subscriber.status() for subscriber in self.subscribers]

    @property
    def complete(self) -> bool:
        """Whether all ranks are connected, and no event since their start or last reset is missing."""
        return all(
            one.is_connected and one.sequencer.complete and one.sequencer.replay_from is None
            for one in self.subscribers
        )

    def report(self) -> PoolReport:
        return pool_rows.report_pools(self.state())

    def hashes_match(self) -> bool | None:
        """Whether the engine publishes the hashes that `hasher` computes; None if no block can be compared."""
        for pools in self.state().pools_by_rank().values():
            block = next((block for pool in pools if (block := _first_full_block(pool)) is not None), None)
            if block is not None:
                digest = self.hasher.hash_blocks(list(block.tokens), hash_block_size(pools))[-1]
                return block.hash in (digest, event_hash(digest))
        return None

    def hash_block_sizes(self) -> list[int]:
        """Return the numbers of tokens that a block hash covers, without duplicates; ranks may differ."""
        return sorted({hash_block_size(pools) for pools in self.state().pools_by_rank().values()})

    def match_prefix(self, prompt: HashedPrompt) -> tuple[int | None, MirrorMatch] | None:
        """Return the rank with the longest cached prefix, and this prefix; None before the first event."""
        ranks = self.state().pools_by_rank()
        found = [(rank, match_prefix(pools, prompt, self.hasher)) for rank, pools in ranks.items()]
        return max(found, key=lambda item: item[1].matched_tokens, default=None)

    def chains_after_prefix(self, prompt: HashedPrompt) -> CachedChains | None:
        ranks = self.state().pools_by_rank().values()
        found = [chains for pools in ranks if (chains := chains_after_prefix(pools, prompt, self.hasher)) is not None]
        return max(found, default=None, key=lambda chains: chains.prefix_tokens)


def _first_full_block(pool: MirroredPool) -> MirroredBlock | None:
    blocks = (block for block in pool.children(None) if block.extra_keys is None)
    return next((block for block in blocks if len(block.tokens) == pool.block_size), None)
