"""kill -9 at random moments: no acknowledged write is lost, and no torn data is served."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.faults.harness import Advance, Finding, split
from tests.faults.victim_process import prepare_server, run_and_kill
from tests.faults.victims import VICTIMS, Victim


def run(rounds: int, seed: int, advance: Advance, victims: Sequence[Victim] = VICTIMS) -> list[Finding]:
    """Kill victims in turn; a folder goes through several lives, each with the files of the previous ones."""
    context, findings = prepare_server(), []
    for victim, share in split(rounds, victims):
        with Finding(f"kill -9: {victim.name}").timed() as finding:
            for first in range(0, share, victim.lives):
                start = seed * 100_003 + first
                generator, reports = random.Random(f"{victim.name} {start}"), list[str]()
                with tempfile.TemporaryDirectory(prefix="kvproxy-faults-") as name:
                    folder = Path(name)
                    victim.prepare(folder, start)
                    for number in range(min(victim.lives, share - first)):
                        delay = generator.uniform(0, victim.longest)
                        life = run_and_kill(context, victim, folder, start + number, delay)
                        reports += life.reports
                        finding.rounds += 1
                        with finding.catch(f"seed {start}, life {number}"):
                            assert life.error is None, life.error
                            victim.check(folder, reports)
                        advance()
                finding.counts["acknowledged"] += len(reports)
        findings.append(finding)
    return findings
