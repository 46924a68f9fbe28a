"""kill -9 at random moments: nothing that was acknowledged is lost, and nothing torn is served.

`python -m tests.faults.kills --rounds 1000`
"""

import random
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext

from tests.faults.harness import Advance, Finding, Harness, Timer, main
from tests.faults.lives import live, prepared, scratch
from tests.faults.victims import VICTIMS
from tests.faults.victims.victim import Victim


def run(rounds: int, seed: int, advance: Advance, victims: Sequence[Victim] = VICTIMS) -> list[Finding]:
    """Kill so many times in all, each victim as often as the others."""
    context, findings = prepared(), []
    for place, victim in enumerate(victims):
        share = rounds // len(victims) + (place < rounds % len(victims))
        finding = Finding(f"kill -9: {victim.name}")
        with Timer(finding):
            for number in range(0, share, victim.lives):
                _folder(context, victim, seed * 100_003 + number, min(victim.lives, share - number), finding, advance)
        findings.append(finding)
    return findings


def _folder(
    context: ForkServerContext, victim: Victim, seed: int, lives: int, finding: Finding, advance: Advance
) -> None:
    """One folder through several lives, each with what the ones before have left."""
    generator, told = random.Random(f"{victim.name} {seed}"), list[str]()
    with scratch() as folder:
        victim.prepare(folder, seed)
        for number in range(lives):
            life = live(context, victim, folder, seed + number, generator.uniform(0, victim.longest))
            told += life.told
            finding.rounds += 1
            try:
                assert life.error is None, life.error
                victim.check(folder, told)
            except Exception as error:
                finding.failures.append(f"seed {seed}, life {number}: {type(error).__name__}: {error}")
            advance()
    finding.counts["acknowledged"] += len(told)


HARNESS = Harness("kills", 1000, run)

if __name__ == "__main__":
    main(HARNESS)
