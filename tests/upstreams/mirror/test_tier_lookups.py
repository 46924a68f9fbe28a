"""The mirror predicts the lookups of engines that offload, from recorded events and from models of the engines' caches."""

import gzip
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.event_decoder import decode_batch
from kvproxy.upstreams.mirror.prefix_match import match_prefix
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt
from tests.upstreams.mirror.offloading_models import SEED, HiCache, StoreBehindVLLM

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("name", sorted(path.name.partition(".")[0] for path in DATA.glob("*.msgpack.gz")))
def test_lookups_of_vllm_are_predicted(name: str) -> None:
    """Recorded by `tests.reference.vllm_tiers`."""
    _, steps = msgpack.unpackb(gzip.decompress((DATA / f"{name}.msgpack.gz").read_bytes()))
    state, results = MirrorState(), Counter[str]()
    for kind, *values in steps:
        if kind == "events":
            state.apply(decode_batch(values[0]))
            continue
        tokens, salt, on_gpu, total = values
        pools = state.pools_by_rank().get(0)
        if pools is None:
            continue
        found = match_prefix(pools, HashedPrompt(tokens, salt=salt), SEED)
        assert found.matched_tokens == on_gpu
        # vLLM computes the last token of a prompt that it loads.
        expected = min(total, len(tokens) - 1)
        predicted = found.reusable_tokens
        results["equal" if predicted == expected else "high" if predicted > expected else "low"] += 1
    assert sum(results.values()) >= 499
    assert state.unknown_removals == 0
    assert results == {"equal": 499}


MODELS: dict[str, Callable[[], HiCache | StoreBehindVLLM]] = {
    "HiCache, write-through": lambda: HiCache(60, 200, write_back=False),
    "HiCache, write-back": lambda: HiCache(60, 200, write_back=True),
    "LMCache": lambda: StoreBehindVLLM(16, is_mooncake=False),
    "Mooncake": lambda: StoreBehindVLLM(4, is_mooncake=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_lookups_of_other_sources_are_predicted(name: str) -> None:
    rng, source, state = random.Random(7), MODELS[name](), MirrorState()
    salts = [None] if name == "LMCache" else [None, None, None, "s"]
    prefixes = [[rng.randrange(200) for _ in range(rng.randint(10, 90))] for _ in range(8)]
    loads = 0
    for _ in range(501):
        prefix = rng.choice(prefixes)
        tokens = prefix[: rng.choice([len(prefix), rng.randint(1, len(prefix))])]
        tokens = tokens + [rng.randrange(200) for _ in range(rng.choice([0, 1, 4, rng.randint(2, 40)]))]
        salt = rng.choice(salts)
        if (pools := next(iter(state.pools_by_rank().values()), None)) is not None:
            found = match_prefix(pools, HashedPrompt(tokens, salt=salt), SEED)
            on_gpu, total = source.lookup(tokens, salt)
            assert (found.matched_tokens, found.reusable_tokens) == (on_gpu, total)
            loads += total > on_gpu
        source.run(tokens, salt, rng)
        state.apply(decode_batch(msgpack.packb([1.0, source.take_events(), 0])))
    assert loads > 50
    assert state.unknown_removals == 0
    assert not state.unknown_names


def test_salted_prompts_match_no_chunk_of_lmcache() -> None:
    """LMCache publishes chunks of salted prompts without their salt."""
    source, state, tokens = StoreBehindVLLM(16, is_mooncake=False), MirrorState(), list(range(33))
    source.run(tokens, "s", random.Random(1))
    state.apply(decode_batch(msgpack.packb([1.0, source.take_events(), 0])))
    (pools,) = state.pools_by_rank().values()
    assert match_prefix(pools, HashedPrompt(tokens, salt="s"), SEED).tiers.num_tokens == 0
