"""The response cache as a library."""

import contextlib
import gc
import math
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproxy.errors import SettingsError
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Capacity, Store, open_store
from kvproxy.library import AsyncCache, CachedAnswer, open_async_cache, open_cache
from kvproxy.settings.cache import CacheSettings
from kvproxy.settings.privacy import RedactionSettings
from tests.index.conftest import MakeStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

EXACT = CacheSettings(semantic=False)


def opened(store: Store, semantic: SemanticCache | None) -> AsyncCache:
    return AsyncCache(ResponseCache(store, semantic))


def shown(found: CachedAnswer | None) -> tuple[str, str, float | None] | None:
    return None if found is None else (found.answer, found.question, found.similarity)


def some_answer() -> CachedAnswer:
    return CachedAnswer("a", "q", None, "id", "", (), 0.0, 1.0)


def similar(store: Store) -> SemanticCache:
    return SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.8), store.observations)


async def test_namespaces_are_separate_from_each_other_and_from_the_proxy(store: Store) -> None:
    async with opened(store, similar(store)) as cache:
        await cache._cache.insert(make_entry("what is a block", namespace="", key="what is a block"))
        assert await cache.get("what is a block") is None
        await cache.set("what is a block", "one", namespace="a")
        assert await cache.get("what is a block", namespace="b") is None
        assert await cache.get("what is a block", namespace="") is None
        # A namespace and a question are not concatenated.
        assert await cache.get("a", namespace="what is a block") is None
        await cache.set("what is a block", "two", namespace="b")
        assert [(await cache.get("what is a block", namespace=name)).answer for name in "ab"] == ["one", "two"]  # type: ignore[union-attr]


async def test_an_answer_is_replaced_and_expires(tmp_path: Path) -> None:
    now = [1000.0]
    store = open_store(tmp_path / "r.db", clock=lambda: now[0])
    async with AsyncCache(
        ResponseCache(store, None, clock=lambda: now[0]), CacheSettings(ttl=50), clock=lambda: now[0]
    ) as cache:
        await cache.set("a", "first")
        await cache.set("a", "second")
        await cache.set("b", "short", ttl=5)
        for ttl in (0, "0s"):
            with pytest.raises(ValueError, match="ttl must be positive"):
                await cache.set("c", "expired", ttl=ttl)
        assert store.count() == 2
        assert (await cache.get("a")).answer == "second"  # type: ignore[union-attr]
        now[0] += 10
        assert await cache.get("b") is None
        assert await cache.get("a") is not None
        now[0] += 45
        assert await cache.get("a") is None
    for use in (cache.get("a"), cache.set("a", "b"), cache.delete("a")):
        with pytest.raises(RuntimeError, match="this cache is closed"):
            await use


def test_errors_of_opening_name_the_cause(tmp_path: Path) -> None:
    damaged = tmp_path / "r.db"
    damaged.write_bytes(b"no database" * 999)
    with pytest.raises(SettingsError, match="damaged"):
        open_cache(damaged, EXACT)
    with pytest.raises(SettingsError, match="checked needs one"):
        open_cache(tmp_path / "new.db", CacheSettings(policy="checked", verifier="none"))


def test_files_of_other_programs_are_not_changed(tmp_path: Path) -> None:
    text, database = tmp_path / "notes.db", tmp_path / "other.db"
    text.write_text("These are notes. " * 99)
    with contextlib.closing(sqlite3.connect(database)) as other:
        other.execute("create table notes (note text)")
    for path, message in (
        (text, "damaged"),
        (database, "the store .*other.db belongs to another program, .*: give another path"),
    ):
        path.chmod(0o644)
        before = path.read_bytes()
        with pytest.raises(SettingsError, match=message):
            open_cache(path, EXACT)
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (before, 0o644)
    assert {each.name for each in tmp_path.iterdir()} == {"notes.db", "other.db"}


def test_the_synchronous_cache_works_in_threads_and_is_durable(tmp_path: Path) -> None:
    with open_cache(tmp_path / "r.db", EXACT) as cache, ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda number: cache.set(f"question {number}", f"answer {number}"), range(100)))
        found = list(threads.map(lambda number: cache.get(f"question {number}"), range(101)))
        assert [hit and hit.answer for hit in found] == [*(f"answer {number}" for number in range(100)), None]
        assert [cache.delete("question 1"), cache.delete("question 1")] == [True, False]
        assert list(threads.map(lambda _: cache.close(), range(8))) == [None] * 8
    cache.close()  # A second time does nothing.
    with pytest.raises(RuntimeError, match="this cache is closed"):
        cache.get("question 1")
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        assert [cache.get(f"question {number}") is None for number in (0, 1, 2)] == [False, True, False]


async def test_the_synchronous_cache_works_in_a_running_loop_as_in_a_notebook(tmp_path: Path) -> None:
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        assert cache.set("a", "b")
        assert shown(cache.get("a")) == ("b", "a", None)


def forget(result: object) -> None:
    assert not hasattr(result, "answer")
    del result
    gc.collect()


@pytest.mark.parametrize("call", ["get", "set", "delete", "close"])
async def test_a_forgotten_await_is_reported_and_its_result_unusable(tmp_path: Path, call: str) -> None:
    async with open_async_cache(tmp_path / "r.db", EXACT) as cache:
        given = {"get": ("a",), "set": ("a", "b"), "delete": ("a",), "close": ()}[call]
        with pytest.warns(RuntimeWarning, match=f"coroutine 'AsyncCache.{call}' was never awaited"):
            forget(getattr(cache, call)(*given))
        assert await cache.get("a") is None


def test_an_opened_cache_redacts(tmp_path: Path) -> None:
    redaction = RedactionSettings(patterns=("secret",))
    with open_cache(tmp_path / "r.db", EXACT, redaction=redaction) as cache:
        assert not cache.set("who asked", "a secret")
        assert cache.set("who asked for the secret", "nobody")
    assert not any(b"secret" in file.read_bytes() for file in tmp_path.iterdir())


def test_arguments_are_checked(tmp_path: Path) -> None:
    with open_cache(tmp_path / "x.db", CacheSettings(semantic=False)) as cache:
        assert cache.set("q", "a", ttl="1h")
        assert cache.get("q") is not None
        for ttl, message in ((-1, "must be positive"), ("soon", "is not a duration"), (math.inf, "give 3649d to keep")):
            with pytest.raises(ValueError, match=message):
                cache.set("q", "b", ttl=ttl)
        wrong: Any = 5
        for call in (cache.get, cache.delete, lambda value: cache.set(value, "a")):
            with pytest.raises(TypeError, match="question must be a string, not int"):
                call(wrong)
        for empty in ("", " \n"):
            for refuses in (cache.get, cache.delete, cache.explain, cache.contains, lambda text: cache.set(text, "a")):
                with pytest.raises(ValueError, match="the question is empty"):
                    refuses(empty)
        assert cache.stats()["gets"]["miss"] == 0
        with pytest.raises(TypeError, match="answer must be a string"):
            cache.set("q", wrong)


async def test_tags_many_answers_and_lifetimes_of_namespaces(tmp_path: Path) -> None:
    now = [1000.0]
    store = open_store(tmp_path / "r.db", clock=lambda: now[0])
    cache_ = ResponseCache(store, None, clock=lambda: now[0])
    async with AsyncCache(cache_, CacheSettings(ttl=50), clock=lambda: now[0], namespace_ttls={"news": 10.0}) as cache:
        await cache._cache.insert(make_entry("of the proxy", tags=("docs",)))
        questions, tags = {f"question {number}": "a" for number in range(2_500)}, ["docs", "docs"]
        assert await cache.set_many(questions, tags=iter(tags)) == 2_500  # type: ignore[arg-type]
        assert await cache.set("weather", "rain", "news", tags=("docs",))
        assert await cache.set("history", "old", "news", ttl=100)
        with pytest.raises(ValueError, match="the question is empty"):
            await cache.set_many({"new": "a", " ": "b"})
        assert await cache.get("new") is None
        now[0] += 20
        assert await cache.get("weather", "news") is None
        assert (await cache.explain("weather", "news")).reason == "miss-expired"
        assert [await cache.get(*each) is None for each in (("history", "news"), ("question 7", ""))] == [False, False]
        stats = await cache.stats()
        assert stats["tags"] == {"docs": 2_502}
        assert (stats["gets"], stats["semantic"]["policy"]) == (
            {"exact": 2, "semantic": 0, "miss": 2, "shared": 0},
            None,
        )
        assert await cache.delete_tag("docs", "news") == 0
        assert await cache.delete_tag("docs") == 2_500
        # The proxy's own responses in a shared store stay.
        assert {entry.prompt for entry in store.list_entries()} == {"history", "of the proxy"}
        wrong: Any = "docs"
        with pytest.raises(TypeError, match=r"tags must be a sequence of strings: write \('docs',\)"):
            await cache.set("q", "a", tags=wrong)
        with pytest.raises(ValueError, match="semantic matching is off"):
            await cache.feedback(some_answer(), right=False)


async def test_a_miss_is_explained_and_a_wrong_answer_rejected(store: Store) -> None:
    async with opened(store, similar(store)) as cache:
        assert (await cache.explain("what is a block")).reason == "miss-new"
        await cache.set("what is a free block", "one")
        assert (await cache.explain("what is a free block")).reason == "hit-exact"
        found = await cache.explain("what is a free block now")
        assert (found.reason, found.question, found.sentence) == (
            "hit-semantic",
            "what is a free block",
            "One answer fits both.",
        )
        hit = await cache.get("what is a free block now")
        assert hit is not None
        far = await cache.explain("which blocks are evicted first")
        assert (far.reason, far.question) == ("low-similarity", "what is a free block")
        assert far.similarity is not None
        assert far.similarity < 0.8
        await cache.feedback(hit, right=False, question="what is a free block now")
        assert await cache.get("what is a free block now") is None
        assert (await cache.explain("what is a free block now")).reason == "rejected"
        assert await cache.get("what is a free block") == replace(hit, similarity=None)
        assert (await cache.explain("wh\u200bat is a free block now")).reason == "miss-hidden"
        assert (await cache.stats())["gets"] == {"exact": 1, "semantic": 1, "miss": 1, "shared": 0}
        await cache.delete("what is a free block")
        with pytest.raises(ValueError, match="is no longer stored"):
            await cache.feedback(hit, right=True)


async def test_the_cause_of_a_removal_is_explained(tmp_path: Path) -> None:
    now = [1000.0]
    store = open_store(tmp_path / "r.db", clock=lambda: now[0], capacity=Capacity(entries=3))
    responses = ResponseCache(store, similar(store), clock=lambda: now[0])
    async with AsyncCache(responses, clock=lambda: now[0]) as cache:

        async def reason(question: str) -> str:
            return (await cache.explain(question)).reason

        await cache.set("pay my bill", "a")
        await cache.delete("pay my bill")
        assert await reason("pay my bill") == "miss-removed"
        for number in range(4):
            await cache.set(f"question {number} on {'abcd'[number]}", "a", ttl=50)
        assert await reason("question 0 on a") == "miss-evicted"
        await cache.set("how can I reset it", "a", ttl=50)
        await cache.set("how can I not reset it", "a", ttl=900)
        assert await reason("how can I reset it") == "hit-exact"
        now[0] += 60
        assert await reason("how can I reset it") == "miss-expired"
        responses.maintain()
        assert await reason("how can I reset it") == "miss-expired"
        await cache.set("pay my bill", "a")
        assert await reason("pay my bill") == "hit-exact"


async def test_an_explanation_equals_a_lookup_after_another_cache_removed_the_answer(tmp_path: Path) -> None:
    async with open_async_cache(tmp_path / "r.db", EXACT) as one, open_async_cache(tmp_path / "r.db", EXACT) as other:
        await one.set("q", "a")
        assert await other.get("q") is not None
        await one.delete("q")
        # For a second, a cache serves the answers that it has read.
        was_served = await other.contains("q")
        reason = (await other.explain("q")).reason
        assert (reason == "hit-exact") in (was_served, await other.get("q") is not None)
        assert await one.get("q") is None
        assert (await one.explain("q")).reason == "miss-removed"


async def test_a_rejected_answer_explains_no_miss_of_an_unrelated_question(tmp_path: Path) -> None:
    now = [1000.0]
    store = open_store(tmp_path / "r.db", clock=lambda: now[0])
    cache = AsyncCache(ResponseCache(store, similar(store), clock=lambda: now[0]), clock=lambda: now[0])
    async with cache:
        await cache.set("what is a free block", "one")
        rejected = await cache.get("what is a free block")
        assert rejected is not None
        await cache.feedback(rejected, right=False)
        assert (await cache.explain("weather in paris")).reason == "low-similarity"
        assert await cache.get("weather in paris") is None
        assert (await cache.stats())["semantic"]["lookups"] == {"low similarity": 1}
        assert (await cache.explain("what is a free block now")).reason == "rejected"
        await cache.set("which pages are evicted", "two", ttl=5)
        now[0] += 9
        assert (await cache.explain("which pages are evicted")).reason == "miss-expired"


async def test_texts_with_nul_are_returned_unchanged(make_store: MakeStore) -> None:
    async with AsyncCache(ResponseCache(make_store(), None)) as cache:
        await cache.set("nul\0question", "nul\0answer", "nul\0space", tags=["nul\0tag", "nultag"])
        found = await cache.get("nul\0question", "nul\0space")
        assert found is not None
        assert (found.question, found.answer) == ("nul\0question", "nul\0answer")
        assert (found.namespace, found.tags) == ("nul\0space", ("nul\0tag", "nultag"))
        assert await cache.get("nulquestion", "nul\0space") is None
        assert await cache.delete_tag("nul\0tag") == 1


async def test_operators_of_the_synchronous_cache_name_the_methods_for_asyncio(store: Store) -> None:
    async with opened(store, None) as cache:
        unchecked: Any = cache
        with pytest.raises(TypeError, match=r"await cache.contains\(question\)"):
            "a" in unchecked  # noqa: B015
        with pytest.raises(TypeError, match=r"await cache.count\(\)"):
            len(unchecked)
        assert unchecked


async def test_unknown_tokens_of_hits_are_not_zero(make_store: MakeStore) -> None:
    def saved(stats: dict[str, Any]) -> list[int | None]:
        return [stats["hits"], stats["completion_tokens_saved"], stats["prompt_tokens_saved"]]

    async with AsyncCache(ResponseCache(make_store(), None)) as cache:
        await cache.set("q", "a")
        assert saved(await cache.stats()) == [0, 0, 0]
        assert (await cache.stats())["models"] == 0
        await cache.get("q")
        assert saved(await cache.stats()) == [1, None, None]
        await cache._cache.insert(make_entry("of the proxy", hits=2, prompt_tokens=0, completion_tokens=5))
        assert saved(await cache.stats()) == [3, 10, 0]


def test_lifetimes_of_namespaces_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"namespace_ttls\['news'\] must be positive"):
        open_cache(tmp_path / "r.db", EXACT, namespace_ttls={"news": 0})
    with open_cache(tmp_path / "r.db", EXACT, namespace_ttls={"news": "1h"}) as cache:
        assert cache.set_many({"a": "b"}, "news") == 1
        assert cache.explain("a", "news").reason == "hit-exact"
        assert cache.stats()["entries"] == 1
        assert cache.delete_tag("none") == 0
