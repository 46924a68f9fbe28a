"""Disks that take no more: a small one of its own where we may mount one, and files that may not grow everywhere.

What was acknowledged before is there afterwards, and what was not is not half there. `python -m tests.faults.disks --rounds 300`
"""

import contextlib
import random
import subprocess
from collections.abc import Iterator, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.faults.harness import Advance, Finding, Harness, Timer, main
from tests.faults.lives import live, prepared, scratch
from tests.faults.victims import VICTIMS
from tests.faults.victims.victim import Victim

_LOOP = "loop,errors=remount-ro"
_SECONDS = 1.0
"""Most that a victim works before it is killed; nearly always the disk is full long before."""


class SmallDisk:
    """A disk in memory, of so many bytes, mounted on a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def resize(self, size: int | None) -> None:
        """Give it another size; None is as much as anybody needs."""
        _mount("-o", f"remount,size={size or 1 << 30}", str(self._folder))


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk | None]:
    """A small disk on a folder; None where we may not mount one."""
    if not _mount("-t", "tmpfs", "-o", f"size={size}", "kvproxy-faults", str(folder)):
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class FailingDisk:
    """A disk whose errors make the system refuse all further writes, as it does with real ones."""

    def __init__(self, folder: Path, image: Path) -> None:
        self._folder = folder
        self._image = image

    def fail(self) -> None:
        """Have it fail: from now on it can only be read."""
        device = subprocess.run(["findmnt", "-no", "SOURCE", self._folder], capture_output=True, text=True, check=True)
        Path("/sys/fs/ext4", Path(device.stdout.strip()).name, "trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Have it checked and mounted again, as after a restart of the machine. No file on it may be open."""
        subprocess.run(["umount", self._folder], check=True)
        subprocess.run(["e2fsck", "-fy", self._image], capture_output=True, check=False)
        assert _mount("-o", _LOOP, str(self._image), str(self._folder))


@contextlib.contextmanager
def failing_disk(folder: Path, image: Path) -> Iterator[FailingDisk | None]:
    """A disk on a folder, kept in a file; None where we may not mount one."""
    with image.open("wb") as made:
        made.truncate(16 << 20)
    if not _runs("mkfs.ext4", "-q", str(image)) or not _mount("-o", _LOOP, str(image), str(folder)):
        yield None
        return
    try:
        yield FailingDisk(folder, image)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _mount(*arguments: str) -> bool:
    return _runs("mount", *arguments)


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def run(rounds: int, seed: int, advance: Advance, victims: Sequence[Victim] = VICTIMS) -> list[Finding]:
    """Fill so many disks in all, each victim's as often as the others'."""
    context, findings = prepared(), []
    for place, victim in enumerate(victims):
        finding = Finding(f"full disk: {victim.name}")
        with Timer(finding):
            for number in range(rounds // len(victims) + (place < rounds % len(victims))):
                _round(context, victim, seed * 100_003 + number, finding)
                advance()
        findings.append(finding)
    return findings


def _round(context: ForkServerContext, victim: Victim, seed: int, finding: Finding) -> None:
    generator = random.Random(f"{victim.name} {seed}")
    with scratch() as folder, contextlib.ExitStack() as stack:
        size = generator.randrange(300_000, 1_500_000)
        disk = stack.enter_context(small_disk(folder, size)) if seed % 2 else None
        with contextlib.suppress(Exception):
            # A disk may be too small for what a round begins with.
            victim.prepare(folder, seed)
            life = live(context, victim, folder, seed, _SECONDS, None if disk else size // 4)
            finding.counts["acknowledged"] += len(life.told)
            finding.counts["refused"] += life.error is not None
            finding.counts["on a small disk"] += disk is not None
            finding.rounds += 1
            if disk is not None:
                disk.resize(None)
            try:
                victim.check(folder, life.told)
            except Exception as error:
                finding.failures.append(f"seed {seed}: {type(error).__name__}: {error}; it had said {life.error}")


HARNESS = Harness("disks", 300, run)

if __name__ == "__main__":
    main(HARNESS)
