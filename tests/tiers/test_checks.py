"""`kvproxy doctor` checks the tiers, and available memory counts the limit of a container."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvproxy.errors import KvproxyError
from kvproxy.settings import TierSettings
from kvproxy.tiers.checks import check_chunks, check_disk, check_host_memory, check_redis
from kvproxy.tiers.free_memory import free_memory
from kvproxy.tiers.local_stores import DiskStore
from kvproxy.tiers.redis import RedisStore
from tests.commands.run import kvproxy
from tests.redis_server import RedisServer


def doctor(*flags: object) -> tuple[int, dict[str, Any]]:
    done = kvproxy("doctor", "--json", *flags)
    return done.returncode, {check["check"]: check for check in json.loads(done.stdout)}


def test_doctor_checks_each_tier(tmp_path: Path, redis_server: RedisServer) -> None:
    folder = tmp_path / "chunks"
    DiskStore(folder, 1 << 20).put("0123456789abcdef-00", b"of another model")
    flags = ["--data", tmp_path, "--tier-disk", folder, "--tier-disk-size", "1MiB", "--tier-redis", redis_server.url]
    code, checks = doctor(*flags, "--tier-host", "1MiB")
    assert code == 0, checks
    assert checks["disk tier"]["detail"].endswith("1 chunks")
    assert "no maxmemory" in checks["redis tier"]["detail"]
    folder.chmod(0o755)
    redis_server.kill()
    code, checks = doctor(*flags)
    assert code == 1
    assert "chmod 700" in checks["disk tier"]["detail"]
    assert "start Redis" in checks["redis tier"]["detail"]
    assert checks["model"]["ok"]


def test_each_error_names_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    for check, message in (
        (lambda: check_chunks(100, 16, "sha256_cbor", is_persistent=True), "use 96"),
        (lambda: check_chunks(96, 16, "xxhash", is_persistent=True), "PYTHONHASHSEED"),
        (lambda: check_host_memory(1 << 60), "lower --tier-host"),
        (lambda: check_disk(tmp_path / "file", 1), "name another folder"),
        (lambda: check_disk(tmp_path / "chunks", 1 << 60), "lower --tier-disk-size"),
    ):
        with pytest.raises(KvproxyError, match=message):
            check()
    assert check_chunks(96, 16, "xxhash", is_persistent=False)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert check_chunks(96, 16, "xxhash", is_persistent=True)


def test_a_redis_that_rejects_writes_when_full_is_an_error(redis_server: RedisServer) -> None:
    store, settings = RedisStore(redis_server.url), TierSettings(redis=redis_server.url)
    store.put("own-00", b"data")
    client = store._client
    client.config_set("maxmemory", "100mb")
    with pytest.raises(KvproxyError, match="allkeys-lru"):
        check_redis(settings)
    client.config_set("maxmemory-policy", "allkeys-lru")
    assert "allkeys-lru, 1 chunks" in check_redis(settings)
    store.close()


GIB = 2**30


def machine(root: Path, **files: str) -> Path:
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


def test_tiers_with_an_upstream_are_refused(tmp_path: Path) -> None:
    done = kvproxy("serve", "--upstream", "http://127.0.0.1:9", "--tier-host", "1GiB", "--port", 0, "--data", tmp_path)
    assert done.returncode == 2
    assert "remove them" in done.stderr
