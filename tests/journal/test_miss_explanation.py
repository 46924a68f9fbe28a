"""`explain --request` names the cause of a miss; `python -m tests.journal.injected` injects a thousand."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.journal.miss_explanation import _turn_sentences, common_prefix_and_suffix
from kvproxy.journal.request_regions import Regions, regions_of
from kvproxy.journal.sessions.session_reader import Turn
from tests.journal.injected import inject


@pytest.mark.parametrize(("text", "count", "seed"), [("all", 40, 1), ("none", 20, 2)])
def test_every_injected_cause_is_named(tmp_path: Path, text: str, count: int, seed: int) -> None:
    causes, wrong = asyncio.run(inject(tmp_path, count, seed, text))
    assert wrong == []
    assert causes.total() == count
    assert len(causes) > 12


def test_messages_are_compared_as_a_diff() -> None:
    def regions(*messages: str, **fields: Any) -> Regions:
        turns = [{"role": "user", "content": message} for message in messages]
        return regions_of({"tenant": "public", "body": {"messages": turns, **fields}})

    first = regions("a", "b", "c")
    assert regions("a", "x", "b", "c").changes_since(first) == [("", "messages[1] user")]
    assert first.differing_regions(regions("a", "x", "b", "c")) == ["messages[1] user"]
    assert regions("a", "b", "x", "c", seed=1).changes_since(first) == [("", "seed"), ("", "messages[2] user")]
    assert regions("b", "y", "z").changes_since(first) == [
        ("messages[0] user", ""),
        ("messages[2] user", "messages[1] user"),
        ("", "messages[2] user"),
    ]
    assert first.changes_since(first) == []


TEXT = st.text("ab", max_size=6)


@given(TEXT, TEXT)
def test_common_ends_leave_only_what_differs(old: str, new: str) -> None:
    start, end = common_prefix_and_suffix(old, new)
    assert old[:start] == new[:start]
    assert old[len(old) - end :] == new[len(new) - end :]
    one, other = old[start : len(old) - end], new[start : len(new) - end]
    assert not (one and other and (one[0] == other[0] or one[-1] == other[-1]))


def test_a_change_has_one_position() -> None:
    first = "messages[0] system", 18
    turn = SimpleNamespace(turn=2, session=1, pause=None, lost={"changed": 18}, place_of=lambda cause: first)
    for placed, end in (({"messages[0] system"}, "system)."), ({"tools"}, "system), at character 18.")):
        *_, line = _turn_sentences(cast("Turn", turn), placed)
        assert line.endswith(end)
