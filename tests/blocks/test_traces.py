"""The block cache against recorded results of traces: those of vLLM, and those of a naive model of vLLM's manager."""

import json
from pathlib import Path

import pytest

from tests.reference.trace_replay import replay

RECORDED = Path(__file__).parents[1] / "simulate" / "data"
TRACES = ("edge", "tiny", *(f"random-{number}" for number in range(1, 5)))


@pytest.mark.parametrize("name", TRACES)
def test_the_results_equal_the_recorded_ones_byte_for_byte(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    steps = [json.loads(step) for step in (RECORDED / f"{name}.jsonl").read_text().splitlines()]
    assert replay(steps) == (RECORDED / f"{name}.expected.jsonl").read_text().splitlines()
