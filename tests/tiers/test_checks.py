"""`kvproxy doctor` checks the tiers, and each error names its fix."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvproxy.errors import KvproxyError
from kvproxy.settings import TierSettings
from kvproxy.tiers.checks import check_chunks, check_disk, check_host, check_redis
from kvproxy.tiers.disk import DiskStore
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
        (lambda: check_host(1 << 60), "lower --tier-host"),
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
