"""Available memory of a machine and of a container."""

from pathlib import Path

import pytest

from kvproxy.tiers.free_memory import free_memory

GIB = 2**30


def machine(root: Path, **files: str) -> Path:
    """Write files of `proc` and `sys/fs/cgroup`."""
    for name, text in {
        "meminfo": f"MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n",
        **files,
    }.items():
        path = root / ("proc/meminfo" if name == "meminfo" else f"sys/fs/cgroup/memory.{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 8 * GIB),
        # Inactive page cache counts as used, but is reclaimable.
        ({"max": f"{4 * GIB}\n", "current": f"{3 * GIB}\n", "stat": f"anon 5\ninactive_file {2 * GIB}\n"}, 3 * GIB),
        ({"max": f"{4 * GIB}\n", "current": f"{3 * GIB}\n", "stat": "anon 5\n"}, GIB),
        ({"max": f"{64 * GIB}\n", "current": "0\n", "stat": "anon 5\n"}, 8 * GIB),
        ({"max": "max\n", "current": f"{3 * GIB}\n", "stat": "anon 5\n"}, 8 * GIB),
    ],
)
def test_the_containers_limit_counts(tmp_path: Path, files: dict[str, str], free: int) -> None:
    assert free_memory(machine(tmp_path, **files)) == free


def test_without_proc_all_physical_memory_counts(tmp_path: Path) -> None:
    assert free_memory(tmp_path) >= free_memory() > 0
