"""A proxy reports a tier whose disk is full, until it has written a chunk again."""

import errno
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.errors import KvproxyError
from kvproxy.installation.checks.servers import check_proxy
from kvproxy.settings import load_settings
from kvproxy.tiers.local_stores import DiskStore
from tests.commands.run import kvproxy
from tests.polling import until
from tests.servers import run_proxy


def _ask(url: str, text: str) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": text * 20}], "max_tokens": 2}
    assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200


def _health(url: str) -> dict[str, Any]:
    health: dict[str, Any] = httpx.get(f"{url}/health").json()
    return health


def _metric(url: str) -> str:
    found = re.search(r'kvproxy_tier_available\{tier="disk"\} (\S+)', httpx.get(f"{url}/metrics").text)
    assert found is not None
    return found[1]


def test_a_full_disk_of_a_tier_is_reported_until_a_chunk_is_written(tmp_path: Path) -> None:
    def write(store: DiskStore, path: Path, data: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    tiers = {"disk": tmp_path / "chunks", "disk_size": "64MiB", "chunk_tokens": 16}
    settings = load_settings(data=tmp_path, engine={"num_blocks": 256}, tiers=tiers, cache={"enabled": False})
    with run_proxy(settings) as (url, _):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DiskStore, "_write", write)
            _ask(url, "one ")
            until(lambda: _health(url)["status"] == "degraded")
        assert "No space left on device" in _health(url)["tiers"]["disk"]
        assert float(_metric(url)) == 0
        with pytest.raises(KvproxyError, match=r"the tier disk fails: cannot write .*No space left"):
            check_proxy(url, None)
        for command in (("top", "--interval", 0.01), ("blocks", "tiers")):
            shown = kvproxy(*command, url=url)
            assert "No space left on device" in shown.stdout + shown.stderr
        _ask(url, "two ")
        until(lambda: _health(url)["status"] == "ok")
        assert float(_metric(url)) == 1
