"""Clocks that are set: nothing is served beyond its time, nothing that is alive is removed, and the limits hold."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproxy.index.store import Capacity, open_store
from kvproxy.settings import load_settings
from kvproxy.tiers.local_stores import DiskStore
from tests.faults.proxies import ask, hit, stored
from tests.index.entries import make_entry
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_proxy

_DAY = 86_400.0
_SKEW = 60.0
JUMPS = st.one_of(st.floats(-400 * _DAY, 400 * _DAY), st.sampled_from([0.0, 1.0, -1.0, 59.0, -61.0, 3600.0, -3600.0]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("jump"), JUMPS),
        st.tuples(st.just("put"), st.floats(1, 2 * _DAY)),
        st.tuples(st.just("hit"), st.integers(0, 9)),
        st.tuples(st.just("keep house"), st.just(0.0)),
    ),
    max_size=25,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_the_store_agrees_with_a_naive_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, float]]
) -> None:
    now = [1.7e9]
    store = open_store(tmp_path_factory.mktemp("clock") / "r.db", clock=lambda: now[0], capacity=Capacity(entries=8))
    naive: dict[str, tuple[float, float]] = {}
    hits = 0
    for number, (step, value) in enumerate(steps):
        if step == "jump":
            now[0] += value
        elif step == "put":
            entry = make_entry(f"q{number % 12}", id=f"i{number}", created=now[0], expires=now[0] + value)
            gone = {each.id for each in store.put(entry).removed}
            naive = {id: times for id, times in naive.items() if id not in gone} | {
                entry.id: (entry.created, entry.expires)
            }
        elif step == "hit" and naive:
            store.record_hit(sorted(naive)[int(value) % len(naive)])
            hits += 1
        else:
            store.flush()
            gone = {each.id for each in store.remove_expired()}
            assert gone == {id for id, (_, expires) in naive.items() if expires <= now[0]}
            naive = {id: times for id, times in naive.items() if id not in gone}
        alive = {id for id, (created, expires) in naive.items() if created <= now[0] + _SKEW and expires > now[0]}
        served = {
            found.id for key in {f"key of n q{each}" for each in range(12)} if (found := store.find(key)) is not None
        }
        assert served == alive
        assert {head.id for head in store.questions(list(naive)).values() if head.freshness == "fresh"} == alive
        assert store.count() == len(naive) <= 8
    assert sum(entry.hits for entry in store.list_entries()) <= hits
    store.close()


def test_what_was_stored_before_the_clock_was_set_back_is_computed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_plain_upstream() as upstream:
        settings_ = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False, "ttl": 1000.0})
        now = [1.7e9]
        monkeypatch.setattr("time.time", lambda: now[0])
        with run_proxy(settings_) as (url, services):
            store = services.answerer.store
            monkeypatch.setattr(store, "_clock", lambda: now[0])
            monkeypatch.setattr(services.answerer, "clock", lambda: now[0])
            monkeypatch.setattr(services.answerer._lookup, "_clock", lambda: now[0])
            monkeypatch.setattr(services.answerer._single_flight._writer, "_clock", lambda: now[0])
            assert stored(ask(url, "one"))
            assert hit(ask(url, "one"))
            for jump in (-3600.0, 7200.0, -3600.0, 400 * _DAY, -400 * _DAY):
                now[0] += jump
                assert stored(ask(url, "one")), f"served after a jump of {jump}"
                assert hit(ask(url, "one"))
                services.answerer.cache.maintain()
                assert store.count() == 1


def test_chunks_of_the_future_are_found_and_are_evicted_like_others(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 300)
    for number in range(3):
        store.put(f"key-{number}", bytes(100))
    for path in tmp_path.rglob("*-1.chunk"):
        os.utime(path, (4e9, 4e9))
    again = DiskStore(tmp_path, 300)
    assert all(again.contains(f"key-{number}") for number in range(3))
    again.put("key-3", bytes(100))
    assert again.stats().chunks == 3
    assert again.stats().bytes == 300
    assert again.contains("key-3")
