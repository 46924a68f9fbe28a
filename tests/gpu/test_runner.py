"""The runner of checks: a failed check does not stop later checks; and a run without a GPU."""

import os
import sys
import time
from typing import Any

import pytest
import torch

from tests.gpu import __main__ as program
from tests.gpu.check import Check, Figures, Missed, NotHere, run_all


def works(device: Any) -> Figures:
    return {"device": device.type}


def misses(device: Any) -> Figures:
    raise Missed("too slow", {"ratio": "2.0"})


def lacks(device: Any) -> Figures:
    raise NotHere("no such part")


def crashes(device: Any) -> Figures:
    os._exit(7)


def hangs(device: Any) -> Figures:
    time.sleep(600)
    return {}


def test_every_check_has_its_say() -> None:
    checks = [
        Check("lacks", 60, lacks),
        Check("misses", 60, misses),
        Check("crashes", 60, crashes),
        Check("works", 60, works),
        Check("hangs", 1, hangs),
    ]
    begun: list[str] = []
    results = {result.name: result for result in run_all(checks, "cpu", 300, begun.append)}
    assert begun == list(results) == [check.name for check in checks]
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


def test_nothing_begins_when_the_time_is_over() -> None:
    (result,) = run_all([Check("works", 60, works)], "cpu", 0.0, lambda name: None)
    assert (result.status, "time" in result.reason) == ("failed", True)


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["tests.gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main() == 3
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert "no CUDA device" in told[0]
