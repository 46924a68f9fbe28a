"""`explain --request` names the cause of a miss; `python -m tests.journal.injected` injects a thousand."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.apis.json import dumps
from kvproxy.journal.miss_explanation import common_prefix_and_suffix, comparable_texts
from tests.journal.injected import INJECT, inject


@pytest.mark.parametrize(("text", "count", "seed"), [("all", 60, 1), ("none", 40, 2)])
def test_every_injected_cause_is_named(tmp_path: Path, text: str, count: int, seed: int) -> None:
    causes, wrong = asyncio.run(inject(tmp_path, count, seed, text))
    assert wrong == []
    assert causes.total() == count
    assert len(causes) > len(INJECT)


@pytest.mark.parametrize(
    ("before", "after", "is_text"),
    [
        ("a", "b", True),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "b"}, True),
        ({"role": "user", "content": "a"}, {"role": "system", "content": "b"}, False),
        ({"role": "user", "content": "a"}, {"role": "user", "content": ["b"]}, False),
        ({"role": "user"}, {"role": "user", "content": "b"}, False),
    ],
)
def test_contents_are_compared_if_nothing_else_differs(before: Any, after: Any, is_text: bool) -> None:
    expected = ("a", "b") if is_text else (dumps(before).decode(), dumps(after).decode())
    assert comparable_texts(before, after) == expected


TEXT = st.text("ab", max_size=6)


@given(TEXT, TEXT)
def test_common_ends_leave_only_what_differs(old: str, new: str) -> None:
    start, end = common_prefix_and_suffix(old, new)
    assert old[:start] == new[:start]
    assert old[len(old) - end :] == new[len(new) - end :]
    one, other = old[start : len(old) - end], new[start : len(new) - end]
    assert not (one and other and (one[0] == other[0] or one[-1] == other[-1]))
