"""The runner of checks: what goes wrong in one costs nothing but itself; and what is said without a GPU."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.gpu.check import Check, Figures, Missed, NotHere, run_all

ROOT = Path(__file__).resolve().parents[2]


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


def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "no CUDA device" in done.stderr
