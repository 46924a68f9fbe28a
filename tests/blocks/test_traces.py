"""Trace replay against an independent naive model: recorded traces first, to trust the model, then many random ones."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvproxy.offline.simulate.replay import replay
from tests.reference.naive_trace import NaiveTrace
from tests.reference.random_trace import random_trace

RECORDED = Path(__file__).parents[1] / "simulate" / "data"
SEEDS = range(40)


def naive(steps: list[dict[str, Any]]) -> list[str]:
    model = NaiveTrace(steps[0], seed="0")
    for step in steps[1:]:
        model.apply(step)
    return model.results()


def test_the_model_gives_vllms_recorded_results() -> None:
    steps = [json.loads(line) for line in (RECORDED / "edge.jsonl").read_text().splitlines()]
    assert naive(steps) == (RECORDED / "edge.expected.jsonl").read_text().splitlines()


@pytest.mark.parametrize("seed", SEEDS)
def test_replay_equals_the_model(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    steps = random_trace(seed)
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    assert list(replay(path)) == naive(steps)


def test_random_traces_reach_every_outcome() -> None:
    """Guards the test above against traces that grew too tame to find anything."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        *lines, end = map(json.loads, naive(random_trace(seed)))
        seen.update(line["st"] for line in lines)
        seen.update(name for name in ("hits", "removed", "cleared") if end[name])
    assert min(seen[name] for name in ("ok", "abort", "rejected", "preempted", "hits", "removed", "cleared")) > 5, seen
