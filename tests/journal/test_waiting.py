"""What waits for the journal comes out as it went in, against a plain list."""

import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.journal.draft import Draft
from kvproxy.journal.hits import PACKED, Equal, Hits, Kind, hit_of
from kvproxy.journal.journal import FileJournal
from kvproxy.journal.past import Gone
from kvproxy.journal.waiting import Waiting, What, records_of
from kvproxy.settings.journal import JournalSettings
from tests.journal.test_file import draft


def equal(name: int) -> Equal:
    return f"key {name}", "public", "m", "chat", (), "entry", 1, 2


IDS = st.one_of(st.text("0123456789abcdef", min_size=32, max_size=32), st.text(max_size=150))
HITS = st.tuples(st.just("hit"), st.integers(0, 3), st.floats(0, 1e10), IDS, st.floats(0, 10), st.floats(0, 10))
OTHERS = st.tuples(st.sampled_from(("draft", "gone", "forget")))
STEPS = st.lists(st.one_of(HITS, OTHERS, st.tuples(st.just("take"), st.integers(1, 5))), max_size=60)


def plain(what: Iterable[What]) -> list[Any]:
    """What was taken, hits as they were given."""
    found: list[Any] = []
    for each in what:
        if not isinstance(each, Hits):
            found.append(each)
            continue
        for alone in each:
            came, first, answered, number, packed = PACKED.unpack(alone.packed)
            kind = alone.kinds[number]
            request_id = packed.decode("latin-1") if kind.request_id is None else kind.request_id
            found.append((kind.equal, came, request_id, first, answered))
    return found


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_what_waits_comes_out_in_its_order(steps: list[Any]) -> None:
    waiting, kinds = Waiting(), [Kind(equal(name)) for name in range(4)]
    left: list[Any] = []
    for step in steps:
        if step[0] == "take":
            taken = waiting.take(step[1])
            assert plain(taken) == left[: step[1]]
            assert sum(map(records_of, taken)) == sum(not isinstance(each, Gone) for each in left[: step[1]])
            del left[: step[1]]
        elif step[0] == "hit":
            _, name, *values = step
            hit = (equal(name), *values)
            if name % 2:
                waiting.expect(kinds[name])
            waiting.add_hit(hit)
            left.append(hit)
        elif step[0] == "forget":
            waiting.forget()
            assert all(kind.number < waiting.oldest for kind in kinds)
        elif step[0] == "draft":
            left.append(Draft("chat", "id", "public", None, 1.0))
            waiting.add(left[-1])
        else:
            left.append(Gone("key", None, 1.0))
            waiting.add_moved(left[-1:])
        assert len(waiting) == len(left)
    assert plain(waiting.take(1_000)) == left
    assert waiting.room == Waiting().room


def test_hits_that_come_while_others_are_taken_are_neither_lost_nor_doubled(often: None) -> None:
    waiting, kind, each = Waiting(), Kind(equal(0)), 20_000
    waiting.expect(kind)

    def come(thread: int) -> None:
        for number in range(each):
            waiting.hits += PACKED.pack(number, 0.0, 0.0, kind.number, b"%d" % thread)
            if number % 10 == 0:
                waiting.add_moved([Gone("key", None, 1.0)])

    with ThreadPoolExecutor(3) as threads:
        coming = [threads.submit(come, thread) for thread in range(3)]
        taken: list[What] = []
        while not all(each.done() for each in coming):
            taken += waiting.take(50)
    found = [hit for hit in plain(taken + waiting.take(100_000)) if not isinstance(hit, Gone)]
    for thread in range(3):
        assert [came for _, came, id, *_ in found if id == str(thread)] == list(range(each))
    assert waiting.room == Waiting().room


def test_no_more_hits_wait_than_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.journal.waiting.MOST", 10)
    journal = FileJournal(tmp_path / "journal.db", JournalSettings())
    hit = hit_of(draft("a", "", hit=True))
    assert hit is not None
    kind = Kind(hit[0])
    journal.add(draft("a", "miss"))
    journal.flush()
    with journal._writing:
        for number in range(8):
            assert journal.repeated(kind, 1e9, b"%d" % number, 0.5)
        journal.gone([Gone("key", "removed", time.time())])
        journal.add(draft("b", "other"))
        for number in range(8, 12):
            assert journal.repeated(kind, 1e9, b"%d" % number, 0.5)
        assert journal.lost == 3
    assert [each.request_id for each in journal.latest(20)] == ["8", "other", *"76543210", "miss"]
    assert journal.repeated(kind, 1e9, b"again", 0.5)
    assert journal.lost == 3
    journal.close()


def test_a_hit_keeps_its_kind_while_kinds_are_numbered_anew() -> None:
    waiting, early = Waiting(), Kind(equal(0))
    waiting.expect(early)
    packed = PACKED.pack(1.0, 2.0, 2.0, early.number, b"id")
    for number in range(5_000):
        waiting.add_hit((equal(number), 1.0, "id", 2.0, 2.0))
    waiting.take(10_000)
    assert early.number < waiting.oldest
    # One that was about to be put there meanwhile.
    waiting.hits += packed
    assert plain(waiting.take(1)) == [(equal(0), 1.0, "id", 2.0, 2.0)]


def test_repeated_hits_are_written_like_any_others(tmp_path: Path) -> None:
    """Whatever their ids: those of this proxy, and a client's, which may be long and in any letters of Latin-1."""
    journal = FileJournal(tmp_path / "journal.db", JournalSettings())
    ids = ["ab" * 16, "x", "é" * 39, "é" * 40, "y" * 128, "z" * 300, "", *(f"{number:032x}" for number in range(600))]
    now, hits = time.time(), [draft("a", "", hit=True), draft("b", "", hit=True)]
    with journal._writing:
        kinds = [Kind(found[0]) for found in map(hit_of, hits) if found is not None]
        assert not journal.repeated(kinds[0], now, b"id", 0.5)
    for question in "ab":
        journal.add(draft(question, "miss"))
    journal.flush()
    for number, id in enumerate(ids):
        assert journal.repeated(kinds[number % 2], now, id.encode("latin-1"), 0.5)
    found = journal.latest(len(ids))[::-1]
    assert [(each.request_id, each.time, each.exact_ms, each.total_ms) for each in found] == [
        (id[:128], now, 500.0, 500.0) for id in ids
    ]
    assert [each.key for each in found[:2]] == [(hit.key or "")[:32] for hit in hits]
    assert {each.prompt for each in found[::2]} == {found[0].prompt}
    assert found[0].prompt != found[1].prompt
    journal.close()


def test_a_hit_whose_prompt_went_comes_as_a_draft_again(tmp_path: Path) -> None:
    now = time.time()
    journal = FileJournal(tmp_path / "journal.db", JournalSettings(days=1), lambda: now)
    hit = draft("a", "", hit=True)
    plain_hit = hit_of(hit)
    assert plain_hit is not None
    kind = Kind(plain_hit[0])
    journal.add(draft("a", "miss", time=now - 90_000))
    journal.flush()
    assert journal.repeated(kind, now - 90_000, b"old", 0.5)
    journal.flush()
    journal._prune()
    assert journal.latest(10) == []
    assert not journal.repeated(kind, now, b"new", 0.5)
    journal.add(hit)
    journal.flush()
    assert journal.repeated(kind, now, b"newer", 0.5)
    assert [each.key for each in journal.latest(10)] == [(hit.key or "")[:32]] * 2
    journal.close()
