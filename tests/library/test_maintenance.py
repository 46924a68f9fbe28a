"""The maintenance of an open cache: counts of hits, expired answers, and forked processes."""

import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from kvproxy import CacheSettings, CacheStoreError, open_async_cache, open_cache
from kvproxy.index.store import open_store
from kvproxy.library import maintenance
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry
from tests.polling import until, until_async

EXACT = CacheSettings(semantic=False)
LOOSE = CacheSettings(policy="threshold", min_similarity=0.5, guards=False)


def test_other_processes_see_hits_and_no_expired_answer_of_an_open_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "INTERVAL", 0.01)
    other = open_store(tmp_path / "r.db")
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        assert cache.set_many({"kept": "a"}) == 1
        cache.set_many({"private": "b"}, ttl="1ms")
        for _ in range(10):
            assert cache.get("kept")
        until(lambda: [entry.hits for entry in other.list_entries()] == [10])
    other.close()


async def test_the_same_for_asyncio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "INTERVAL", 0.01)
    other = open_store(tmp_path / "r.db")
    async with open_async_cache(tmp_path / "r.db", EXACT) as cache:
        assert await cache.set("kept", "a")
        assert await cache.set("private", "b", ttl=0.001)
        assert await cache.get("kept")
        await until_async(lambda: [entry.hits for entry in other.list_entries()] == [1])
    other.close()


def maintenance_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "kvproxy-maintenance"}


async def test_a_forgotten_cache_leaves_no_thread(tmp_path: Path) -> None:
    before = maintenance_threads()
    cache = open_async_cache(tmp_path / "r.db", EXACT)
    collected = weakref.ref(cache._cache)
    assert len(maintenance_threads() - before) == 1
    database = cache._cache.store.database
    del cache
    gc.collect()
    assert collected() is None
    await until_async(lambda: not maintenance_threads() - before)
    database.close()


def test_an_unused_cache_for_threads_is_closed(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "r.db", EXACT)
    cache.set("q", "a")
    assert cache.get("q")
    thread, database, collected = cache._thread, cache._cache._cache.store.database, weakref.ref(cache)
    del cache
    gc.collect()
    assert collected() is None
    until(lambda: not thread.is_alive())
    with pytest.raises(CacheStoreError, match="is closed"):
        database.query("select 1")
    with open_cache(tmp_path / "r.db", EXACT) as again:
        assert again.stats()["hits"] == 1


def test_answers_of_a_cache_without_semantic_matching_get_similar_hits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "INTERVAL", 0.01)
    with (
        open_cache(tmp_path / "r.db", LOOSE, embedder=HashEmbedder()) as cache,
        open_cache(tmp_path / "r.db", EXACT) as other,
    ):
        other.set("what is a free block", "a")
        until(lambda: cache.get("what is a free block please") is not None)


def test_an_expired_answer_can_be_deleted(tmp_path: Path) -> None:
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        cache.set("private", "a", ttl="1ms")
        until(lambda: cache.get("private") is None)
        assert cache.delete("private")
        assert not cache.delete("private")


def test_an_expired_answer_does_not_count(tmp_path: Path) -> None:
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        for name in "ab":
            cache.set_many({f"{name} short": "a"}, ttl="1ms", tags=[name])
            cache.set_many({f"{name} long": "a"}, tags=[name])
        until(lambda: len(list(cache)) == 2)
        assert len(cache) == cache.count() == cache.count("") == 2
        assert (cache.delete_tag("a"), cache.clear(), cache.stats()["entries"]) == (1, 1, 0)


def run(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_exit_of_a_program_stores_the_counts_of_an_open_cache(tmp_path: Path) -> None:
    run(
        "from kvproxy import CacheSettings, open_cache\n"
        "cache = open_cache('r.db', CacheSettings(semantic=False))\n"
        "cache.set('q', 'a'); cache.get('q'); cache.get('q')",
        tmp_path,
    )
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        assert cache.stats()["hits"] == 2


def test_threads_that_outlive_the_main_thread_end_with_their_answers(tmp_path: Path) -> None:
    code = """
import logging, threading
from kvproxy import CacheSettings, open_cache
logging.disable()
cache = open_cache("r.db", CacheSettings(semantic=False))
cache.set("q", "a")

def use():
    threading.main_thread().join()
    print(cache.get("q").answer, cache.get_or_set("new", str.upper))
    try:
        cache.set("new", "b")
    except RuntimeError as error:
        print(error)

threading.Thread(target=use).start()
"""
    answers, error = run(code, tmp_path).splitlines()
    assert answers == "a NEW"
    assert error.startswith("the main thread has ended")
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        assert cache.stats()["hits"] == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_is_told_to_open_the_cache_again(tmp_path: Path) -> None:
    code = """
import json, os, warnings
from kvproxy import CacheSettings, open_cache
warnings.simplefilter("ignore")
cache = open_cache("r.db", CacheSettings(semantic=False))
cache.set("q", "a")
pid = os.fork()
if pid == 0:
    found = []
    for use in (lambda: cache.get("q"), lambda: cache.stats(), lambda: cache.__enter__()):
        try:
            use()
        except RuntimeError as error:
            found.append(str(error))
    cache.close()
    with open_cache("r.db", CacheSettings(semantic=False)) as own:
        found.append(own.get("q").answer)
    open("found.json", "w").write(json.dumps(found))
    raise SystemExit
status = os.waitpid(pid, 0)[1]
print(status, cache.get("q").answer)
"""
    assert run(code, tmp_path) == "0 a\n"
    *messages, answer = json.loads((tmp_path / "found.json").read_text())
    assert answer == "a"
    assert len(messages) == 3
    assert all("open it in each worker" in message for message in messages)


def test_a_closed_cache_cannot_be_entered_again(tmp_path: Path) -> None:
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        pass
    with pytest.raises(RuntimeError, match="this cache is closed"), cache:
        pass


def test_only_answers_of_the_library_are_listed_and_cleared(tmp_path: Path) -> None:
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        other = open_store(tmp_path / "r.db")
        other.put(make_entry("of a proxy"))
        assert len(cache) == 0
        assert cache
        cache.set_many({"a": "1", "b": "2"}, tags=["t"])
        cache.set("a", "3", namespace="n")
        assert (len(cache), cache.count("n"), "a" in cache, "c" in cache) == (3, 1, True, False)
        assert {(each.question, each.answer, each.namespace, each.tags) for each in cache} == {
            ("a", "1", "", ("t",)),
            ("b", "2", "", ("t",)),
            ("a", "3", "n", ()),
        }
        assert [each.expires - each.created for each in cache.answers("n")] == [86_400.0]
        assert repr(cache) == f"<Cache {tmp_path / 'r.db'}, exact hits only>"
        assert [cache.clear("n"), cache.clear(), cache.clear()] == [1, 2, 0]
        assert [entry.prompt for entry in other.list_entries()] == ["of a proxy"]
        other.close()
    assert repr(cache).endswith(", closed>")
