"""A short run of every kill, and a look at whether the harness would notice a loss."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults import kills
from tests.faults.harness import passed
from tests.faults.victims import VICTIMS
from tests.faults.victims.victim import READY, Tell, Victim


@pytest.mark.parametrize("victim", VICTIMS, ids=lambda victim: victim.name)
def test_kill_9_loses_nothing_that_was_acknowledged(victim: Victim) -> None:
    findings = kills.run(4, 1, lambda: None, [victim])
    assert passed(findings)
    assert sum(finding.rounds for finding in findings) == 4


class Careless:
    """Tells of lines before they are written, and writes them in two parts."""

    name = "careless"
    lives = 1
    longest = 0.02

    def prepare(self, folder: Path, seed: int) -> None:
        """An empty folder."""

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        tell(READY)
        with (folder / "lines").open("a") as out:
            for number in range(10**6):
                tell(str(number))
                out.write(f"{number}\n")

    def check(self, folder: Path, told: Sequence[str]) -> None:
        assert set(told) <= set((folder / "lines").read_text().split())


class Short:
    """Ends by itself, before it begins or right afterwards."""

    name = "short"
    lives = 1
    longest = 5.0

    def __init__(self, code: int, *, begins: bool) -> None:
        self._code = code
        self._begins = begins

    def prepare(self, folder: Path, seed: int) -> None:
        """An empty folder."""

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        if self._begins:
            tell(READY)
        os._exit(self._code)

    def check(self, folder: Path, told: Sequence[str]) -> None:
        """Nothing can be lost."""


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("code", [0, 3])
def test_the_harness_notices_who_ends_by_itself(code: int, begins: bool) -> None:
    (finding,) = kills.run(1, 0, lambda: None, [Short(code, begins=begins)])
    assert finding.failures == [f"seed 0, life 0: AssertionError: it ended by itself, with exit code {code}"]


def test_the_harness_notices_what_is_lost() -> None:
    (finding,) = kills.run(3, 0, lambda: None, [Careless()])
    assert finding.failures
    assert not passed([finding])
