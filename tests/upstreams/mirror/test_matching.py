"""A mirror predicts the hits of the block cache: random traffic, encoded events, and lookups in both."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.blocks.cache_request import CacheRequest, MMItem
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.single_type_manager import GroupSpec
from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.event_decoder import ClearedEvent, EventBatch, StoredEvent, decode_batch
from kvproxy.upstreams.mirror.mirror import Mirror
from kvproxy.upstreams.mirror.pool_rows import report_pools
from kvproxy.upstreams.mirror.prefix_match import match_prefix
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt, compute_hashes
from tests.reference.integrity import check_integrity

SEED = BlockHasher(seed="0")
SHAPES = [
    [GroupSpec("full", 2)],
    [GroupSpec("sliding_window", 2, 5)],
    [GroupSpec("full", 2), GroupSpec("sliding_window", 2, 5)],
    [GroupSpec("full", 2), GroupSpec("sliding_window", 2, 6), GroupSpec("sliding_window", 2, 6)],
    [GroupSpec("full", 4), GroupSpec("sliding_window", 2, 5)],
    [GroupSpec("full", 2), GroupSpec("sliding_window", 4, 6), GroupSpec("full", 4)],
    [GroupSpec("sliding_window", 2, 3), GroupSpec("sliding_window", 4, 9)],
    [GroupSpec("full", 2), GroupSpec("sliding_window", 2, 5, 0), GroupSpec("sliding_window", 4, 6, 0)],
]


class Engine:
    """A block cache whose encoded events reach a mirror."""

    def __init__(
        self,
        specs: Sequence[GroupSpec],
        num_blocks: int,
        hasher: BlockHasher = SEED,
        hash_block_size: int | None = None,
    ) -> None:
        self.manager = KVCacheManager(
            num_blocks, groups=specs, record_events=True, hasher=hasher, hash_block_size=hash_block_size
        )
        self.state = MirrorState()
        self.live: list[CacheRequest] = []
        self._started = 0

    def publish(self) -> None:
        check_integrity(self.manager)
        events = [event.as_wire() for event in self.manager.take_events()]
        self.state.apply(decode_batch(msgpack.packb([1.0, events, 0])))
        assert contents(self.state) == contents(self.late_state())
        cached = [block for block in self.manager.pool.blocks if block.hash is not None]
        assert len(cached) == sum(pool.num_copies for pool in self.state.pools.values())

    def late_state(self) -> MirrorState:
        """Return the state of a mirror that receives a snapshot instead of the earlier events."""
        state, events = MirrorState(), [event.as_wire() for event in self.manager.snapshot()]
        state.apply(decode_batch(msgpack.packb([1.0, events, 0])))
        return state

    def start(self, tokens: list[int], **more: Any) -> bool:
        self._started += 1
        request = CacheRequest(str(self._started), tokens, **more)
        computed = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(tokens) - computed.num_tokens, computed) is None:
            return False
        request.num_computed_tokens = len(tokens)
        self.live.append(request)
        return True

    def go_on(self, place: int, token: int) -> None:
        request = self.live[place % len(self.live)]
        request.append(token)
        if self.manager.allocate_slots(request, 1) is None:
            self.live.remove(request)
            self.manager.free(request)
        else:
            request.num_computed_tokens += 1

    def end(self, place: int) -> None:
        self.manager.free(self.live.pop(place % len(self.live)))

    def reused(self, tokens: list[int], salt: str | None = None) -> int:
        return self.manager.get_computed_blocks(CacheRequest("", tokens, cache_salt=salt)).num_tokens

    def predicted(self, tokens: list[int], salt: str | None = None, hasher: BlockHasher = SEED) -> int:
        pools = self.state.pools_by_rank().get(0, [])
        return match_prefix(pools, HashedPrompt(tokens, salt=salt), hasher).matched_tokens


def contents(state: MirrorState) -> dict[Any, Any]:
    return {
        (key, digest): (block.copies, block.parent, block.tokens, block.extra_keys)
        for key, pool in state.pools.items()
        for digest, block in pool.blocks.items()
    }


def traffic(engine: Engine, chance: random.Random, steps: int) -> list[list[int]]:
    """Run random requests with common prefixes under eviction; return the prompts without a salt or image."""
    prompts: list[list[int]] = []
    for _ in range(steps):
        action = chance.random()
        if engine.live and action < 0.3:
            engine.end(chance.randrange(100))
        elif engine.live and action < 0.6:
            engine.go_on(chance.randrange(100), chance.randrange(3))
        elif action < 0.63:
            engine.manager.reset_prefix_cache()
        else:
            shared = chance.choice(prompts)[: chance.randrange(30)] if prompts else []
            tokens = shared + [chance.randrange(3) for _ in range(chance.randrange(1, 12))]
            options = chance.choice([{}, {}, {}, {"cache_salt": "s"}, {"mm": [MMItem("cat", 0, 3)]}])
            if engine.start(tokens, skip_read=chance.random() < 0.1, **options) and not options:
                prompts.append(tokens)
        if chance.random() < 0.7:
            engine.publish()
    engine.publish()
    return prompts


@pytest.mark.parametrize("specs", SHAPES, ids=lambda specs: "+".join(f"{s.kind}{s.block_size}" for s in specs))
@pytest.mark.parametrize("num_blocks", [30, 120])
def test_the_prediction_equals_the_hits_of_the_block_cache(specs: list[GroupSpec], num_blocks: int) -> None:
    chance = random.Random(num_blocks)
    engine = Engine(specs, num_blocks)
    most = 0
    for _ in range(3):
        prompts = traffic(engine, chance, 25)
        for tokens in prompts[-10:]:
            longer = [*tokens, 9]
            assert engine.predicted(longer) == engine.reused(longer)
            assert engine.predicted(tokens) == engine.reused(tokens)
            most = max(most, engine.reused(longer))
    assert most > 0


@pytest.mark.parametrize("specs", [SHAPES[0], SHAPES[2], SHAPES[3]], ids=["full", "hybrid", "three"])
def test_an_engine_with_other_hashes_is_matched_by_tokens(specs: list[GroupSpec]) -> None:
    chance = random.Random(3)
    engine = Engine(specs, 60, BlockHasher(seed="another"))
    prompts = traffic(engine, chance, 80)
    reused = [engine.reused([*tokens, 9]) for tokens in prompts]
    assert [engine.predicted([*tokens, 9]) for tokens in prompts] == reused
    assert max(reused) > 0


@pytest.mark.parametrize("specs", [SHAPES[6], [GroupSpec("full", 8), GroupSpec("sliding_window", 4, 9)]])
def test_hashes_finer_than_the_blocks_require_the_match_unit(specs: list[GroupSpec]) -> None:
    """vLLM with `--prefix-match-unit`."""
    engine = Engine(specs, 60, hash_block_size=1)
    predicted, reused = Counter[int | None](), 0
    for tokens in traffic(engine, random.Random(11), 120):
        pools = engine.state.pools_by_rank()[0]
        for unit in (1, None):
            predicted[unit] += match_prefix(pools, HashedPrompt([*tokens, 9]), SEED, unit).matched_tokens
        reused += engine.reused([*tokens, 9])
    assert predicted[1] == reused > 0
    assert predicted[None] <= reused


def test_chunked_local_attention_is_never_overestimated() -> None:
    chance = random.Random(5)
    engine = Engine([GroupSpec("full", 2), GroupSpec("chunked_local", 2, 8)], 60)
    for tokens in traffic(engine, chance, 200):
        assert engine.predicted([*tokens, 9]) <= engine.reused([*tokens, 9])


def test_a_salt_separates_and_a_match_names_its_blocks() -> None:
    engine = Engine([GroupSpec("full", 4)], 20)
    tokens = list(range(10))
    engine.start(tokens, cache_salt="mine")
    engine.publish()
    assert engine.predicted(tokens) == 0
    assert engine.predicted(tokens, "mine") == 8
    # One token is left to compute.
    assert engine.predicted(tokens[:8], "mine") == 4
    (pools,) = engine.state.pools_by_rank().values()
    found = match_prefix(pools, HashedPrompt([*tokens[:6], 99, 98, 97], salt="mine"), SEED)
    assert [block.hash for block in found.blocks] == [event_hash(found.group.hashes.digests[0])]
    divergence = found.divergence()
    assert divergence is not None
    assert (divergence.position, divergence.cached, divergence.prompt) == (6, (6, 7), (99, 98))


def test_blocks_of_one_token_leave_the_last_token_to_compute() -> None:
    engine = Engine([GroupSpec("full", 1)], 20)
    engine.start([5, 6])
    engine.publish()
    assert [engine.predicted(tokens) for tokens in ([], [5], [5, 6])] == [0, 0, 1]
    assert [engine.reused(tokens) for tokens in ([5], [5, 6])] == [0, 1]


def test_an_empty_mirror_holds_nothing() -> None:
    tokens = list(range(40))
    mirror = Mirror("tcp://127.0.0.1:1", hasher=SEED)
    assert mirror.match_prefix(HashedPrompt(tokens)) is None
    # An event without blocks, and a cleared pool, provide the block size only.
    state = MirrorState()
    state.apply(EventBatch(1.0, [StoredEvent([], None, (), 4)], None))
    assert match_prefix(state.pools_by_rank()[None], HashedPrompt(tokens), SEED).matched_tokens == 0
    state.apply(EventBatch(2.0, [StoredEvent([1], None, (1, 2, 3, 4), 4), ClearedEvent()], None))
    found = match_prefix(state.pools_by_rank()[None], HashedPrompt(tokens), SEED)
    assert (found.matched_tokens, found.divergence()) == (0, None)
    assert match_prefix(state.pools_by_rank()[None], HashedPrompt([]), SEED).matched_tokens == 0


def test_the_rank_with_the_longest_prefix_in_all_media_is_the_best() -> None:
    mirror = Mirror("tcp://127.0.0.1:1", hasher=SEED)
    tokens = list(range(17))
    digests = CacheRequest("", tokens).update_hashes(SEED, 4)
    names = [event_hash(digest) for digest in digests]
    state = mirror.state()
    state.apply(EventBatch(1.0, [StoredEvent(names[:1], None, tokens[:4], 4)], 0))
    state.apply(EventBatch(1.0, [StoredEvent(list(digests[:3]), None, tokens[:12], 4)], 1))
    state.apply(EventBatch(1.0, [StoredEvent(list(names), None, tokens[:16], 4, medium="CPU")], 0))
    best = mirror.match_prefix(HashedPrompt(tokens))
    assert best is not None
    assert (best[0], best[1].matched_tokens, best[1].tiers.by_medium) == (0, 4, {"CPU": 12})
    state.apply(EventBatch(2.0, [ClearedEvent("CPU")], 0))
    best = mirror.match_prefix(HashedPrompt(tokens))
    assert best is not None
    assert (best[0], best[1].matched_tokens, best[1].tiers.by_medium) == (1, 12, {})


@pytest.mark.parametrize("is_published", [False, True])
def test_a_confirmed_reset_clears_the_ranks_that_have_not_published_it(is_published: bool) -> None:
    mirror = Mirror("tcp://127.0.0.1:1", hasher=SEED)
    state, stored = mirror.state(), StoredEvent([7], None, (1, 2), 2)
    state.apply(EventBatch(1.0, [stored], 0))
    before = mirror.num_resets()
    if is_published:
        # A block of the next step is kept.
        state.apply(EventBatch(2.0, [ClearedEvent(), stored], 0))
    mirror.clear_after_reset(before)
    assert report_pools(state).cached == is_published


async def test_a_prompt_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([GroupSpec("full", 4), GroupSpec("sliding_window", 2, 5)], 60)
    tokens = list(range(30))
    engine.start(tokens)
    engine.publish()
    mirror = Mirror("tcp://127.0.0.1:1", hasher=SEED)
    mirror.subscribers[0].state = engine.state
    prompt = HashedPrompt(tokens)
    await compute_hashes(prompt, [mirror])
    monkeypatch.setattr(BlockHasher, "hash_blocks", None)
    found = mirror.match_prefix(prompt)
    assert found is not None
    assert found[1].matched_tokens == 28


def test_a_window_event_omits_hashes_and_has_all_tokens() -> None:
    """vLLM computed five blocks and keeps the last two for a window of two blocks."""
    tokens = list(range(21))
    names = [event_hash(digest) for digest in CacheRequest("", tokens).update_hashes(SEED, 4)]
    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 9}
    run = {"type": "BlockStored", "parent_block_hash": None, "token_ids": tokens[:20], "block_size": 4}
    state = MirrorState()
    events = [run | full | {"block_hashes": names}, run | window | {"block_hashes": names[3:]}]
    state.apply(decode_batch(msgpack.packb([1.0, events, 0])))
    assert match_prefix(state.pools_by_rank()[0], HashedPrompt(tokens), SEED).matched_tokens == 20
    assert match_prefix(state.pools_by_rank()[0], HashedPrompt(tokens[:17]), SEED).matched_tokens == 0
    removed = {"type": "BlockRemoved", "block_hashes": [names[4]], "medium": "GPU", "group_idx": 1}
    state.apply(decode_batch(msgpack.packb([2.0, [removed], 0])))
    assert match_prefix(state.pools_by_rank()[0], HashedPrompt(tokens), SEED).matched_tokens == 0


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_state_group_needs_only_the_last_block(data: st.DataObject) -> None:
    tokens = list(range(25))
    names = [event_hash(digest) for digest in CacheRequest("", tokens).update_hashes(SEED, 4)]
    full = data.draw(st.integers(0, 6))
    states = data.draw(st.sets(st.integers(0, 5)))
    state = MirrorState()
    events: list[Any] = [
        StoredEvent(list(names[:full]), None, tokens[: 4 * full], 4, group=0, kind="full_attention"),
        *(StoredEvent([names[place]], 7, (), 4, group=1, kind="mamba") for place in states),
    ]
    if not states:
        events.append(StoredEvent([], None, (), 4, group=1, kind="mamba"))
    state.apply(EventBatch(1.0, events, 0))
    expected = max((4 * (place + 1) for place in states if place < full), default=0)
    assert match_prefix(state.pools_by_rank()[0], HashedPrompt(tokens), SEED).matched_tokens == expected
