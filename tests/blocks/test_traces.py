"""The block cache against vLLM's recorded results, and against an independent naive model on many random traces."""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.reference.naive_trace import NaiveTrace
from tests.reference.random_trace import random_trace
from tests.reference.trace_replay import replay

RECORDED = Path(__file__).parents[1] / "analyse" / "simulate" / "data"
SEEDS = range(14)


def naive(steps: list[dict[str, Any]]) -> list[str]:
    model = NaiveTrace(steps[0], seed="0")
    for step in steps[1:]:
        model.apply(step)
    return model.results()


@cache
def modelled(seed: int) -> list[str]:
    """The naive model's results for a random trace."""
    return naive(random_trace(seed))


def recorded(name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the steps of a trace, and the result lines of vLLM 0.33.0's own block manager."""
    steps, lines = ((RECORDED / f"{name}{kind}.jsonl").read_text().splitlines() for kind in ("", ".expected"))
    return [json.loads(step) for step in steps], lines


@pytest.mark.parametrize("name", ["edge", "tiny"])
def test_the_results_equal_vllms_byte_for_byte(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    steps, expected = recorded(name)
    assert replay(steps) == expected


def test_the_model_gives_vllms_recorded_results() -> None:
    steps, expected = recorded("edge")
    assert naive(steps) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_replay_equals_the_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert replay(random_trace(seed)) == modelled(seed)


def test_random_traces_reach_every_outcome() -> None:
    """Guards the test above against traces that grew too tame to find anything."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        *lines, end = map(json.loads, modelled(seed))
        seen.update(line["st"] for line in lines)
        seen.update(name for name in ("hits", "removed", "cleared") if end[name])
    assert min(seen[name] for name in ("ok", "abort", "rejected", "preempted", "hits", "removed", "cleared")) > 3, seen
