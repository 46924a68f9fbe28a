"""The checks with tiny sizes on a CPU."""

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import __main__ as program
from tests.gpu import bandwidth, engine, graphs, index, memory, steps
from tests.gpu.check import Check, Missed, Result, run_one
from tests.gpu.scale import FULL

CPU = torch.device("cpu")
CHECKS = [check for part in (graphs, bandwidth, steps, memory, index) for check in part.CHECKS]
CHECKS += [check for check in engine.CHECKS if check.run is engine.bfloat16_logits]


@pytest.mark.parametrize("check", [check for check in CHECKS if check.rehearsed], ids=lambda check: check.name)
def test_a_check_runs(check: Check) -> None:
    with torch.no_grad():
        result = run_one(check, CPU)
    assert (result.status, result.reason) == ("passed", "")
    assert result.figures


@pytest.mark.parametrize(("rate", "passes"), [(0.7, True), (0.5, False)])
def test_a_missed_goal_fails_its_check(rate: float, passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "scale_of", lambda device: FULL)
    monkeypatch.setattr(bandwidth, "copy_bandwidth", lambda device: 100.0)
    monkeypatch.setattr(bandwidth, "_decode_rate", lambda *arguments: 100.0 * rate)
    if passes:
        assert len(bandwidth.decode_bandwidth(CPU)) == 5
    else:
        with pytest.raises(Missed, match=r"8 x 8192: 0\.50 of a copy, goal 0.6"):
            bandwidth.decode_bandwidth(CPU)


def test_a_check_that_was_not_run_fails_where_all_are_required() -> None:
    results = [Result("a", "passed", 1.0), Result("b", "not run", 0.0), Result("c", "failed", 0.0)]
    assert program.failed(results, require_all=False) == ["c"]
    assert program.failed(results, require_all=True) == ["b", "c"]


def test_each_result_is_written_and_a_failure_ends_the_run_badly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "results.jsonl"
    monkeypatch.setattr(
        sys, "argv", ["tests.gpu", "--rehearse", "--only", "limits", "--limit", "0", "--json", str(lines)]
    )
    assert program.main() == 1, "nothing was begun"
    machine, result = map(json.loads, lines.read_text().splitlines())
    assert machine["machine"]["device"] == "CPU"
    assert (result["name"], result["status"]) == ("limits of the device", "failed")
