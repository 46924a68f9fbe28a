"""kill -9 at random moments: nothing that was acknowledged is lost, and nothing torn is served.

`python -m tests.faults.kills --rounds 1000`
"""

import multiprocessing
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.faults.harness import Advance, Finding, Harness, Timer, main
from tests.faults.victims import VICTIMS
from tests.faults.victims.victim import READY, Victim

_PATIENCE = 60.0


def run(rounds: int, seed: int, advance: Advance, victims: Sequence[Victim] = VICTIMS) -> list[Finding]:
    """Kill so many times in all, each victim as often as the others."""
    context = multiprocessing.get_context("forkserver")
    # Each process begins as a copy of one that has imported everything, in milliseconds.
    context.set_forkserver_preload(["tests.faults.victims", "faiss"])
    findings = []
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
    generator, told = random.Random(f"{victim.name} {seed}"), list[str]()
    with _scratch() as folder:
        victim.prepare(folder, seed)
        for life in range(lives):
            told += _killed(context, victim, folder, seed + life, generator.uniform(0, victim.longest))
            finding.rounds += 1
            try:
                victim.check(folder, told)
            except Exception as error:
                finding.failures.append(f"seed {seed}, life {life}: {type(error).__name__}: {error}")
            advance()
    finding.counts["acknowledged"] += len(told)


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kvproxy-faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _killed(context: ForkServerContext, victim: Victim, folder: Path, seed: int, seconds: float) -> list[str]:
    """Let the victim work for so many seconds, and kill it; what it told."""
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(victim, folder, seed, its), daemon=True)
    process.start()
    its.close()
    told: list[str] = []
    try:
        assert ours.poll(_PATIENCE), f"{victim.name} does not begin"
        assert ours.recv_bytes() == READY.encode()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and process.is_alive():
            if ours.poll(left):
                told.append(ours.recv_bytes().decode())
    except EOFError:
        pass
    process.kill()
    process.join()
    # What it told before it died may still be on its way.
    try:
        while ours.poll():
            told.append(ours.recv_bytes().decode())
    except (EOFError, OSError):
        pass
    ours.close()
    return told


def _work(victim: Victim, folder: Path, seed: int, tell: Connection) -> None:
    victim.work(folder, seed, lambda line: tell.send_bytes(line.encode()))


HARNESS = Harness("kills", 1000, run)

if __name__ == "__main__":
    main(HARNESS)
