"""The response cache as a program uses it: questions and answers in words."""

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvproxy.errors import SettingsError
from kvproxy.index.errors import EmbedderError
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Capacity, SqliteStore
from kvproxy.index.store.write_batcher import WriteBatcher
from kvproxy.responses import open_response_cache
from kvproxy.settings.cache import CacheSettings
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

EXACT = CacheSettings(semantic=False)


def similar(store: SqliteStore) -> SemanticCache:
    return SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.8))


async def test_equal_questions_are_answered_before_similar_ones(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db")
    async with ResponseCache(store, similar(store)) as cache:
        assert await cache.ask("what is a block here") is None
        assert await cache.keep("what is a block here", "sixteen tokens")
        assert await cache.keep("what is a block there", "another thing")
        hit = await cache.ask("what is a block there")
        assert hit is not None
        assert (hit.answer, hit.question, hit.similarity) == ("another thing", "what is a block there", None)
        near = await cache.ask("what is a block here then")
        assert near is not None
        assert near.answer == "sixteen tokens"
        assert near.similarity is not None
        assert near.similarity > 0.8
        assert await cache.ask("the weather in Lisbon") is None


async def test_namespaces_are_kept_apart_from_each_other_and_from_the_proxys(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db")
    async with ResponseCache(store, similar(store)) as cache:
        await cache.insert(make_entry("what is a block", namespace="", key="what is a block"))
        assert await cache.ask("what is a block") is None
        await cache.keep("what is a block", "one", namespace="a")
        assert await cache.ask("what is a block", namespace="b") is None
        assert await cache.ask("what is a block", namespace="") is None
        # Neither is a question with a namespace ever taken for another split of the same text.
        assert await cache.ask("", namespace="a") is None
        await cache.keep("what is a block", "two", namespace="b")
        assert [(await cache.ask("what is a block", namespace=name)).answer for name in "ab"] == ["one", "two"]  # type: ignore[union-attr]


async def test_an_answer_is_replaced_and_expires(tmp_path: Path) -> None:
    now = [1000.0]
    store = SqliteStore(tmp_path / "r.db", clock=lambda: now[0])
    async with ResponseCache(store, None, ttl=50, clock=lambda: now[0]) as cache:
        await cache.keep("a", "first")
        await cache.keep("a", "second")
        await cache.keep("b", "short", ttl=5)
        assert store.count() == 2
        assert (await cache.ask("a")).answer == "second"  # type: ignore[union-attr]
        now[0] += 10
        assert await cache.ask("b") is None
        assert await cache.ask("a") is not None
        now[0] += 45
        assert await cache.ask("a") is None


async def test_what_is_kept_survives_and_can_be_exported(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.db"
    async with open_response_cache(path, EXACT) as cache:
        await cache.keep("a \U0001f642 question", "an answer\u2028of two lines", namespace="n")
    async with open_response_cache(path, EXACT) as cache:
        hit = await cache.ask("a \U0001f642 question", namespace="n")
        assert hit is not None
        assert hit.answer == "an answer\u2028of two lines"
        document = next(cache.store.entries()).document()
        assert json.loads(json.dumps(document))["response"] == hit.answer
        assert cache.store.stats()["hits"] == 1


async def test_what_is_larger_than_the_store_may_be_is_not_kept(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db", capacity=Capacity(bytes=2000))
    async with ResponseCache(store, None) as cache:
        assert not await cache.keep("a", "x" * 3000)
        assert await cache.ask("a") is None


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "r.db"
    damaged.write_bytes(b"no database" * 999)
    with pytest.raises(SettingsError, match="damaged"):
        open_response_cache(damaged, EXACT)
    with pytest.raises(SettingsError, match="checked needs one"):
        open_response_cache(tmp_path / "new.db", CacheSettings(policy="checked", verifier="none"))


class Failing(HashEmbedder):
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        raise RuntimeError("out of order")


async def test_an_embedder_that_fails_costs_similar_questions_only(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db")
    await ResponseCache(store, similar(store)).keep("one question", "one answer")
    async with ResponseCache(store, SemanticCache(store, Failing(), ThresholdPolicy(0.8))) as cache:
        assert await cache.keep("a question", "an answer")
        assert (await cache.ask("a question")).answer == "an answer"  # type: ignore[union-attr]
        with pytest.raises(EmbedderError, match="out of order"):
            await cache.ask("another question")


async def test_what_an_earlier_version_stored_is_found_under_the_same_names(tmp_path: Path) -> None:
    async with ResponseCache(SqliteStore(tmp_path / "r.db"), None, clock=lambda: 1000.0) as cache:
        await cache.keep("q", "a", namespace="n")
        (entry,) = cache.store.ls()
        assert entry.key == "957b74ef25bc04520a591965be6df50b54b921abfb351b3a3fd0116578354f7c"
        assert entry.namespace == "7b39bcf8676b7bbe15a2a07c47a6bf6b9cef060229835286ca48d4f930f5b78b"
        assert (entry.created, entry.expires, entry.semantic) == (1000.0, 1000.0 + 86_400, True)


async def test_an_answer_may_be_kept_for_no_time(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db", clock=lambda: 1000.0)
    async with ResponseCache(store, None, clock=lambda: 1000.0) as cache:
        assert await cache.keep("a", "x", ttl=0.0)
        assert await cache.ask("a") is None


async def test_what_is_being_stored_is_found_already_and_while_it_lasts(tmp_path: Path) -> None:
    now = [1000.0]
    store = SqliteStore(tmp_path / "r.db", clock=lambda: now[0])
    cache = ResponseCache(store, None, clock=lambda: now[0])
    entry, go = make_entry("x", expires=1010.0), threading.Event()
    put = store.put_many

    def held(puts: Any) -> Any:
        assert go.wait(20)
        return put(puts)

    cache._writes = WriteBatcher(held)
    inserting = asyncio.create_task(cache.insert(entry))
    await asyncio.sleep(0)
    assert (await cache.find(entry.key), store.find(entry.key)) == (entry, None)
    now[0] = 1010.0
    assert await cache.find(entry.key) is None
    now[0] = 1000.0
    # A newer one takes its place; the end of the first leaves it there.
    newer = replace(entry, id="f" * 32)
    second = asyncio.create_task(cache.insert(newer))
    await asyncio.sleep(0)
    go.set()
    assert await inserting
    assert await second
    assert await cache.find(entry.key) == newer
    store.close()


async def test_time_takes_what_is_over_and_writes_counted_hits(tmp_path: Path) -> None:
    now = [1000.0]
    store = SqliteStore(tmp_path / "r.db", clock=lambda: now[0])
    async with ResponseCache(store, None, clock=lambda: now[0]) as cache:
        entries = [make_entry(f"what is {number}", created=1000.0, expires=1010.0) for number in range(3)]
        assert await cache.insert_many([*entries, make_entry("and this", created=1000.0)]) == 4
        store.record_hit(entries[0].id)
        now[0] = 1010.0
        cache.maintain()
        assert [entry.prompt for entry in store.ls()] == ["and this"]
        assert await cache.remove([store.ls()[0].id, "none"]) == 1
        assert store.count() == 0
