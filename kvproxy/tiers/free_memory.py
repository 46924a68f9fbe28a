"""How much memory of the host a program can still have."""

import os
from pathlib import Path

_ROOT = Path("/")


def free_memory(root: Path = _ROOT) -> int:
    """Bytes that are unused, or that the system gives back when they are asked for, such as what it keeps of files.

    In a container with a limit it is what is left of that, if that is less.

    Args:
        root: where `proc` and `sys` lie.
    """
    kept = [_of_machine(root), _of_container(root / "sys/fs/cgroup")]
    return min((free for free in kept if free is not None), default=_physical())


def _of_machine(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _of_container(group: Path) -> int | None:
    """What is left of a limit; None where there is none."""
    try:
        limit, used = (group / "memory.max").read_text(), int((group / "memory.current").read_text())
        fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # Files that nobody has read for a while are counted as used, and are given back first.
    return int(limit) - used + int(fields.get("inactive_file", 0)) if limit.strip() != "max" else None


def _physical() -> int:
    """All memory of the machine, where the system does not tell what is free."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
