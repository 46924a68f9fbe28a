"""Limits the CPU time of a process with a control group (Linux, as root; version 1 or 2)."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 20_000  # Microseconds.


@contextlib.contextmanager
def limit_cpu(pid: int, cores: float) -> Iterator[None]:
    """Give a process at most the CPU time of `cores`, and the highest weight, so that other work takes none of it.

    Raises OSError without the right to create control groups.
    """
    is_v1 = (_ROOT / "cpu").is_dir()
    group = (_ROOT / "cpu" if is_v1 else _ROOT) / f"kvproxy-benchmark-{pid}"
    quota = int(cores * _PERIOD)
    limits = {"cpu.max": f"{quota} {_PERIOD}", "cpu.weight": "10000"}
    if is_v1:
        limits = {"cpu.cfs_period_us": f"{_PERIOD}", "cpu.cfs_quota_us": f"{quota}", "cpu.shares": "262144"}
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(f"{pid}")
        yield
    finally:
        for process in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(process)
        os.rmdir(group)
