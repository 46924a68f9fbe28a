"""Chunks that return from a tier, are damaged, or belong to another model: answers stay right."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.tier_connector import model_fingerprint
from kvproxy.errors import SettingsError
from kvproxy.settings import EngineSettings
from tests.engine.driven import Driven, prompts_of
from tests.engine.models import load, random_model, tiny
from tests.redis_server import RedisServer
from tests.tiers.doubles import DictStore


@pytest.mark.parametrize("architecture", ["llama", "gpt-neox"])
def test_tokens_equal_generate_after_reload_from_every_tier(
    architecture: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    prompts, expected = prompts_of(architecture, 5)
    every = {"host": "64MiB", "disk": tmp_path, "redis": redis_server.url}
    for tier in ("host", "disk", "redis"):
        first = Driven(tiny(architecture), {tier: every[tier]})
        assert first.answers(prompts, "cold") == expected
        first.settle()
        first.forget_pool()
        assert first.answers(prompts, "back") == expected
        assert first.hits()[tier] > 0
        assert max(usage.tier_tokens for usage in first.usage.values()) >= 16
        first.engine.close()
        if tier != "host":
            second = Driven(tiny(architecture), {tier: every[tier]})
            assert second.answers(prompts, "restart") == expected
            assert second.hits()[tier] > 0
            second.engine.close()


def test_salts_keep_chunks_apart() -> None:
    prompts, _ = prompts_of("llama")
    driven = Driven(tiers={"host": "64MiB"})
    for id, salt in (("a", "one"), ("b", "two"), ("c", "one")):
        driven.submit(id, prompts[0], 2, salt=salt)
        driven.run()
        driven.settle()
        driven.forget_pool()
    assert driven.usage["a"].tier_tokens == driven.usage["b"].tier_tokens == 0
    assert driven.usage["c"].tier_tokens > 0
    driven.engine.close()


def break_get(key: str) -> None:
    raise ValueError("out of luck")


@pytest.mark.parametrize("harm", ["flip", "cut", "missing", "failing", "broken"])
def test_bad_chunks_are_computed_instead(harm: str, caplog: pytest.LogCaptureFixture) -> None:
    prompts, expected = prompts_of("llama")
    driven = Driven(tiers={"host": "64MiB"})
    store = DictStore()
    driven.replace_store(store)
    assert driven.answers(prompts, "cold") == expected
    driven.settle()
    driven.forget_pool()
    chance = random.Random(1)
    for key in sorted(store.chunks):
        data = bytearray(store.chunks[key])
        if chance.random() < 0.5:
            continue
        if harm == "flip":
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            store.chunks[key] = bytes(data)
        elif harm == "cut":
            store.chunks[key] = bytes(data[: chance.randrange(len(data))])
        elif harm == "missing":
            del store.chunks[key]
    store.failing = harm == "failing"
    if harm == "broken":
        store.get = break_get  # type: ignore[method-assign]
    assert driven.answers(prompts, "back") == expected
    driven.settle()
    if harm in ("flip", "cut"):
        assert driven.tiers.chain.stats()[0].damaged > 0
    if harm == "failing":
        assert driven.tiers.chain.stats()[0].hits == 0
    elif harm == "broken":
        assert "a load from the tiers failed" in caplog.text
    else:
        # A load ends at the first bad chunk, so each round may find one more of a chain; all are written again.
        damaged = [-1]
        for round in range(4):
            driven.forget_pool()
            assert driven.answers(prompts, f"again{round}") == expected
            driven.settle()
            damaged.append(driven.tiers.chain.stats()[0].damaged)
        assert damaged[-1] == damaged[-2]
    driven.engine.close()


def test_redis_may_die_and_come_back(redis_server: RedisServer) -> None:
    prompts, expected = prompts_of("llama")
    driven = Driven(tiers={"redis": redis_server.url, "redis_timeout": 0.2})
    assert driven.answers(prompts, "cold") == expected
    driven.settle()
    driven.forget_pool()
    step, steps = driven.step, iter(range(100_000))

    def step_and_kill() -> None:
        step()
        if next(steps) == 2:
            redis_server.kill()

    driven.step = step_and_kill  # type: ignore[method-assign]
    assert driven.answers(prompts, "mid") == expected
    driven.forget_pool()
    began = time.monotonic()
    assert driven.answers(prompts, "down") == expected
    assert time.monotonic() - began < 30
    assert driven.tiers.chain.stats()[0].errors > 0
    driven.engine.close()


def test_no_memory_for_a_chunk_costs_the_chunk_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, expected = prompts_of("llama")
    driven = Driven(tiers={"host": "64MiB"})

    def short(*arguments: object, **more: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr("kvproxy.engine.chunk_transfer.ChunkTransfer.copy_from_pool", short)
    assert driven.answers(prompts, "cold") == expected
    (row,) = driven.tiers.chain.stats()
    assert (row.chunks, row.dropped > 0) == (0, True)
    driven.engine.close()


def test_a_tier_that_could_never_keep_a_chunk_is_refused(tmp_path: Path) -> None:
    for tiers, name in (({"host": "1KiB"}, "tiers.host"), ({"disk": tmp_path / "d", "disk_size": "1KiB"}, "disk_size")):
        with pytest.raises(SettingsError, match=f"{name}.*0.0 MiB.*or raise the limit"):
            Driven(tiers=tiers)
    assert not (tmp_path / "d").exists()


def test_a_fingerprint_covers_weights_configuration_and_sizes_and_in_strict_mode_all_that_changes_bits() -> None:
    def digest(loaded: LoadedModel, **settings: Any) -> bytes:
        sizes = {"num_blocks": 64, "block_size": 4}
        return model_fingerprint(loaded, EngineSettings(**(sizes | settings)), BlockHasher(seed="0"))

    loaded, strict = load(random_model("llama")), {"batch_invariant": True}
    before = digest(loaded)
    assert (len(before), digest(load(random_model("llama")))) == (32, before)
    assert digest(loaded, block_size=8) != before
    assert digest(loaded, max_num_batched_tokens=512) == digest(loaded, threads=2) == before
    assert digest(loaded, **strict) != digest(loaded, **strict, max_num_batched_tokens=512)
    assert digest(loaded, **strict, threads=1) != digest(loaded, **strict, threads=2)
    with torch.no_grad():
        next(loaded.model.parameters()).view(-1)[-1] += 1e-3
    changed = digest(loaded)
    loaded.model.config.rms_norm_eps *= 2
    assert len({before, changed, digest(loaded)}) == 3
