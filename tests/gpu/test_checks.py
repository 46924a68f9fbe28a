"""The checks with tiny sizes on a CPU, their runner, and the decode kernels compiled for GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import __main__ as program
from tests.gpu import bandwidth, chats, engine, graphs, index, memory, outcomes, steps
from tests.gpu.check import Check, Result, run_all, run_one

CPU = torch.device("cpu")
CHECKS = [check for part in (graphs, bandwidth, steps, memory, index, chats) for check in part.CHECKS]
CHECKS += [check for check in engine.CHECKS if check.run is engine.bfloat16_logits]


@pytest.mark.parametrize("check", [check for check in CHECKS if check.rehearsed], ids=lambda check: check.name)
def test_a_check_runs(check: Check) -> None:
    with torch.no_grad():
        result = run_one(check, CPU)
    assert (result.status, result.reason) == ("passed", "")
    assert result.figures


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


def test_every_check_has_its_say() -> None:
    begun: list[str] = []
    results = {result.name: result for result in run_all(outcomes.CHECKS, "cpu", 3600, begun.append)}
    assert begun == list(results) == [check.name for check in outcomes.CHECKS]
    assert {name: result.status for name, result in results.items()} == {
        "lacks": "not run",
        "misses": "failed",
        "crashes": "failed",
        "works": "passed",
        "hangs": "failed",
    }
    assert results["misses"].figures == {"ratio": "2.0"}
    assert results["works"].figures == {"device": "cpu"}
    assert "code 7" in results["crashes"].reason
    assert "not done after 1 s" in results["hangs"].reason


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["tests.gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main() == 3
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "no CUDA device" in told[0]


# The smallest GPUs of these architectures give a program this many bytes of shared memory.
SHARED = 99 * 1024
REGISTERS = 65_536
# `python -m tests.gpu.compiled` compiles all kernels in half a minute.
NAMES = ("sm_90 bf16 window cap 4", "merge sm_80 bf16 sinks")


def test_compiles_without_spilling(tmp_path: Path) -> None:
    # In another process, because Triton's interpreter replaces the kernels in this one.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compiled", *NAMES],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        check=True,
    )
    found = json.loads(done.stdout)
    assert len(found) == len(NAMES)
    for name, facts in found.items():
        assert facts["stack"] == 0, f"{name} spills registers"
        assert facts["shared"] <= SHARED, name
        assert facts["registers"] * facts["warps"] * 32 <= REGISTERS, f"{name} does not fit a processor"
        if name.endswith(" 4"):
            assert 3 * facts["registers"] * facts["warps"] * 32 <= REGISTERS, f"{name} leaves room for few programs"
