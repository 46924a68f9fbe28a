"""Exact hits that are written a batch at a time leave what each of them alone would have left."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.journal.draft import Draft
from kvproxy.journal.hits import hit_of
from kvproxy.journal.schema import open_file
from kvproxy.journal.waiting import Waiting
from kvproxy.journal.writer import Writer
from kvproxy.settings.journal import JournalSettings
from tests.journal.test_file import draft

NOW = 1_795_000_000.0
IDS = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=200)
HITS = st.lists(
    st.tuples(st.sampled_from(("a", "b", "c")), st.sampled_from(("", "x", "x, y")), st.floats(0, 200_000), IDS),
    max_size=40,
)


def hit(question: str, tags: str, later: float, request_id: str) -> Draft:
    made = draft(question, request_id, hit=True, tags=tags, time=NOW + later)
    made.looked, made.first, made.opened = made.began + 0.25, made.began + 0.5, 0.0
    return made


def left_by(path: Path, batches: list[list[Draft]], *, plain: bool, rows: int = 1_000) -> list[Any]:
    """The records, last numbers and totals that batches leave after misses of "a" and "b"; "c" was never asked. As many
    records are kept as are asked for."""
    connection = open_file(path)
    writer = Writer(connection, JournalSettings(rows=rows), lambda: NOW)
    for question in ("a", "b"):
        miss = draft(question, "miss", time=NOW)
        miss.ended = miss.began + 2.0
        writer.write([miss])
    for batch in batches:
        # What follows a hit goes with it, as long as it is one that can.
        waiting = Waiting()
        for each in batch:
            known = plain and writer.knows(each.key) and hit_of(each)
            waiting.add_hit(known) if known else waiting.add(each)
        writer.write(waiting.take(10_000))
        writer.prune()
    found = [
        connection.execute("select * from requests order by number").fetchall(),
        connection.execute("select last from prompts order by number").fetchall(),
        connection.execute("select * from totals order by day, tenant, model, layer, tag").fetchall(),
    ]
    needed = connection.execute("select distinct equal from records where equal is not null order by equal").fetchall()
    assert connection.execute("select number from equals order by number").fetchall() == needed
    connection.close()
    return found


@settings(max_examples=25, deadline=None)
@given(st.lists(HITS, max_size=3), st.integers(1, 120))
def test_hits_in_batches_equal_hits_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Any]], rows: int
) -> None:
    folder = tmp_path_factory.mktemp("journals")
    drafts = [[hit(*each) for each in batch] for batch in batches]
    one_by_one, at_once = (left_by(folder / f"{plain}.db", drafts, plain=plain, rows=rows) for plain in (False, True))
    for left, right in zip(one_by_one, at_once, strict=True):
        assert len(left) == len(right)
        for row, other in zip(left, right, strict=True):
            assert list(other) == pytest.approx(list(row))


def test_a_large_batch_is_written_whole_and_in_order(tmp_path: Path) -> None:
    batch = [hit("ab"[number % 2], "", float(number), f"request {number}") for number in range(2_700)]
    records, last, totals = left_by(tmp_path / "journal.db", [batch], plain=True, rows=10_000)
    assert [row[2] for row in records[2:]] == [each.request_id for each in batch]
    assert [row[1] for row in records[2:]] == pytest.approx([each.time for each in batch])
    assert last == [(2_701,), (2_702,)]
    assert sum(row[5] for row in totals if row[3] == "exact") == 2_700
