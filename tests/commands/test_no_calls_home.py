"""No command calls a vendor: no connection, no name look-up, and no file except in kvproxy's own folders."""

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path

import httpx
import pytest

from kvproxy.errors import ModelUnsupported
from kvproxy.http.hugging_face_hub import prefer_cached_models
from kvproxy.settings import load_settings
from tests.commands.run import NOWHERE, command
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
from tests.processes import serve

_REMOTE = re.compile(r"(?:connect|sendto|sendmsg)\(.*sin6?_port=htons\((\d+)\)")
_SWITCHES = ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")


def traced(trace: Path) -> list[str]:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    return ["strace", "-D", "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmsg", "-o", str(trace)]


def remote_ports(trace: Path) -> set[int]:
    return {int(port) for port in _REMOTE.findall(trace.read_text())}


def strange_files(home: Path) -> list[str]:
    files = [path.relative_to(home) for path in home.rglob("*") if not path.is_dir()]
    return [str(file) for file in files if Path(".local/share/kvproxy") not in file.parents]


@pytest.mark.parametrize("embedded", [False, True], ids=["upstream", "embedded"])
def test_a_server_connects_to_its_upstream_only(tmp_path: Path, embedded: bool) -> None:
    port, trace, home = free_port(), tmp_path / "trace", tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in (*_SWITCHES, "XDG_DATA_HOME")}
    with (
        run_plain_upstream() as upstream,
        serve(
            [
                *traced(trace),
                *command("serve", "--port", port, *(("--num-blocks", 64) if embedded else ("--upstream", upstream))),
            ],
            port,
            tmp_path / "log",
            env=kept | {"HOME": str(home)},
            timeout=300.0,
        ) as server,
    ):
        model = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
        for question in ("How do I reset my password?", "How can I reset my password?"):
            messages = [{"role": "user", "content": question}]
            body = {"model": model, "temperature": 0, "max_tokens": 4, "messages": messages}
            httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
        assert httpx.get(f"{server.url}/ui", follow_redirects=True).is_success
        server.process.send_signal(signal.SIGINT)
        server.process.wait(timeout=60)
    assert remote_ports(trace) == (set() if embedded else {int(upstream.rsplit(":", 1)[1])})
    assert strange_files(home) == []


@pytest.mark.parametrize(
    ("variable", "folder"),
    [
        ("HF_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_without_a_network_models_come_from_the_local_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, folder: str
) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    settings = load_settings(upstream=NOWHERE, embedder="org/model", cache={"verifier": "short"})
    # sentence-transformers adds its name to short ids.
    for cached, missing in ((None, "org/model"), ("org--model", "short"), ("sentence-transformers--short", None)):
        if cached is not None:
            (tmp_path / folder / f"models--{cached}" / "snapshots").mkdir(parents=True)
        monkeypatch.delenv("HF_HUB_OFFLINE")
        with contextlib.nullcontext() if missing is None else pytest.raises(ModelUnsupported, match=missing):
            prefer_cached_models(settings)
        assert os.environ["HF_HUB_OFFLINE"] == "1"
