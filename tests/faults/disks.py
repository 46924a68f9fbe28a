"""Full disks: a small mounted disk if mounting is permitted, otherwise a limit on file sizes.

Every acknowledged write survives, and a refused write leaves nothing partial.
"""

import contextlib
import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.harness import Advance, Finding, split
from tests.faults.victim_process import prepare_server, run_and_kill
from tests.faults.victims import VICTIMS, Victim

_LOOP = "loop,errors=remount-ro"
_SECONDS = 1.0
"""Maximum run of a victim; the disk is usually full long before."""


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """Mount a disk in memory of some bytes on a folder; yield False if mounting is not permitted."""
    is_mounted = _succeeds("mount", "-t", "tmpfs", "-o", f"size={size}", "kvproxy-faults", str(folder))
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def grow(folder: Path) -> None:
    """Make room for everything on a small disk."""
    _succeeds("mount", "-o", "remount,size=1G", str(folder))


class FailingDisk:
    """A disk that becomes read-only after an error."""

    def __init__(self, folder: Path, image: Path) -> None:
        self._folder = folder
        self._image = image

    def fail(self) -> None:
        device = subprocess.run(["findmnt", "-no", "SOURCE", self._folder], capture_output=True, text=True, check=True)
        Path("/sys/fs/ext4", Path(device.stdout.strip()).name, "trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Check and mount the disk again, as after a restart of the machine. Its files must be closed."""
        subprocess.run(["umount", self._folder], check=True)
        subprocess.run(["e2fsck", "-fy", self._image], capture_output=True, check=False)
        assert _succeeds("mount", "-o", _LOOP, str(self._image), str(self._folder))


@contextlib.contextmanager
def failing_disk(folder: Path, image: Path) -> Iterator[FailingDisk | None]:
    """Mount an image file on a folder; yield None if mounting is not permitted."""
    with image.open("wb") as file:
        file.truncate(16 << 20)
    if not _succeeds("mkfs.ext4", "-q", str(image)) or not _succeeds("mount", "-o", _LOOP, str(image), str(folder)):
        yield None
        return
    try:
        yield FailingDisk(folder, image)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def run(rounds: int, seed: int, advance: Advance, victims: Sequence[Victim] = VICTIMS) -> list[Finding]:
    """Fill a new disk in each round, with the victims in turn."""
    context, findings = prepare_server(), []
    for victim, share in split(rounds, victims):
        with Finding(f"full disk: {victim.name}").timed() as finding:
            for start in range(seed * 100_003, seed * 100_003 + share):
                generator = random.Random(f"{victim.name} {start}")
                size = generator.randrange(300_000, 1_500_000)
                with contextlib.ExitStack() as stack:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvproxy-faults-")))
                    on_disk = start % 2 == 1 and stack.enter_context(small_disk(folder, size))
                    victim.prepare(folder, start)
                    life = run_and_kill(context, victim, folder, start, _SECONDS, None if on_disk else size // 4)
                    finding.counts["acknowledged"] += len(life.reports)
                    finding.counts["refused"] += life.error is not None
                    finding.counts["on a small disk"] += on_disk
                    finding.rounds += 1
                    if on_disk:
                        grow(folder)
                    with finding.catch(f"seed {start}, error {life.error}"):
                        victim.check(folder, life.reports)
                advance()
        findings.append(finding)
    return findings
