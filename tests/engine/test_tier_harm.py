"""Damaged chunks, dead stores, memory that is short and impossible settings: answers stay right."""

import random
import time
from pathlib import Path

import pytest

from kvproxy.errors import SettingsError
from tests.engine.driven import Driven, prompts_of
from tests.redis_server import RedisServer
from tests.tiers.doubles import DictStore


@pytest.mark.parametrize("harm", ["flip", "cut", "missing", "failing"])
def test_bad_chunks_are_computed_instead(harm: str) -> None:
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
    assert driven.answers(prompts, "back") == expected
    driven.settle()
    if harm in ("flip", "cut"):
        assert driven.tiers.chain.stats()[0].damaged > 0
    if harm == "failing":
        assert driven.tiers.chain.stats()[0].hits == 0
    else:
        # A load ends at the first bad chunk, so each round may find one more of a chain; all are written again.
        damaged = [-1]
        for round in range(5):
            driven.forget_pool()
            assert driven.answers(prompts, f"again{round}") == expected
            driven.settle()
            damaged.append(driven.tiers.chain.stats()[0].damaged)
        assert damaged[-1] == damaged[-2]
    driven.engine.close()


def test_a_store_that_breaks_its_promise_is_logged_and_computed_around(caplog: pytest.LogCaptureFixture) -> None:
    """Stores raise TierError; whatever else one raises must neither hang a request nor go unseen."""
    prompts, expected = prompts_of("llama")
    driven = Driven(tiers={"host": "64MiB"})
    store = DictStore()
    driven.replace_store(store)
    assert driven.answers(prompts, "cold") == expected
    driven.settle()
    driven.forget_pool()

    def broken(key: str) -> None:
        raise ValueError("out of luck")

    store.get = broken  # type: ignore[method-assign]
    assert driven.answers(prompts, "back") == expected
    assert "a load from the tiers failed" in caplog.text
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

    monkeypatch.setattr("kvproxy.engine.chunk_saver.ChunkTransfer.read", short)
    assert driven.answers(prompts, "cold") == expected
    (row,) = driven.tiers.chain.stats()
    assert (row.chunks, row.dropped > 0) == (0, True)
    driven.engine.close()


def test_a_tier_that_could_never_keep_a_chunk_is_refused(tmp_path: Path) -> None:
    for tiers, name in (({"host": "1KiB"}, "tiers.host"), ({"disk": tmp_path / "d", "disk_size": "1KiB"}, "disk_size")):
        with pytest.raises(SettingsError, match=f"{name}.*0.0 MiB.*or raise the limit"):
            Driven(tiers=tiers)
    assert not (tmp_path / "d").exists()
