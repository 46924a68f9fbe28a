"""Measures the memory that the process can still allocate."""

import os
from pathlib import Path

_ROOT = Path("/")


def free_memory(root: Path = _ROOT) -> int:
    """Return the bytes that this process can still allocate, within the container's limit. Page cache counts as free."""
    amounts = [_available_memory(root), _container_memory(root / "sys/fs/cgroup")]
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((free for free in amounts if free is not None), default=physical)


def _available_memory(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _container_memory(group: Path) -> int | None:
    try:
        limit, used = (group / "memory.max").read_text(), int((group / "memory.current").read_text())
        fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # Inactive page cache counts as used, but is reclaimable.
    return int(limit) - used + int(fields.get("inactive_file", 0)) if limit.strip() != "max" else None
