"""The files of a running proxy are readable by their owner only."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import httpx

from kvproxy.index.private_files import make_private_folder
from kvproxy.installation.checks.all_checks import _check_data_folder
from kvproxy.library.configured_cache import open_response_cache
from kvproxy.settings import CacheSettings, load_settings
from tests.commands.run import kvproxy
from tests.index.entries import make_entry
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port


def test_no_file_of_a_proxy_can_be_read_by_others(tmp_path: Path) -> None:
    """The stored responses have the prompts of all clients."""
    data, port = tmp_path / "data", free_port()
    # An earlier version left this behind.
    data.mkdir(mode=0o755)
    for name in ("responses.db", "responses.db-wal"):
        (data / name).touch(0o644)
    command = [sys.executable, "-m", "kvproxy", "serve", "--json", "--no-semantic", "--port", str(port)]
    with (
        run_plain_upstream() as upstream,
        subprocess.Popen(
            [*command, "--data", str(data), "--upstream", upstream], stdout=subprocess.PIPE, umask=0o022
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline()
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        turn = {"role": "user", "content": "What is a block?"}
        transport = httpx.HTTPTransport(retries=5)
        with httpx.Client(transport=transport, timeout=300) as client:
            assert client.post(url, json={"model": "demo", "messages": [turn]}).status_code == 200
        process.send_signal(signal.SIGTERM)
        process.wait(300)
    found = [data, *data.rglob("*")]
    assert data / "responses.db" in found
    assert [path for path in found if stat.S_IMODE(os.stat(path).st_mode) & 0o077] == []


def test_a_program_that_uses_the_library_makes_no_file_that_others_can_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = tmp_path / "new" / "r.db"
        cache = open_response_cache(path, CacheSettings(semantic=False))
        cache.store.put(make_entry())
        found = [path.parent, *path.parent.iterdir()]
        assert len(found) == 4
        assert [each for each in found if stat.S_IMODE(each.stat().st_mode) & 0o077] == []
        cache.close()
        assert kvproxy("cache", "export", tmp_path / "copy.jsonl", "--store", path).returncode == 0
        assert stat.S_IMODE((tmp_path / "copy.jsonl").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_folder_that_is_everybodys_on_purpose_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    make_private_folder(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_doctor_tells_what_others_can_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    # Whatever the process masks of new folders.
    data.chmod(0o755)
    checks = {check["check"]: check for check in json.loads(kvproxy("doctor", "--data", data, "--json").stdout)}
    assert "chmod go=" in checks["data"]["detail"]
    data.chmod(0o700)
    assert _check_data_folder(load_settings(data=data)).endswith(", private")
