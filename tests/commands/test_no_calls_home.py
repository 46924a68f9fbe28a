"""No command calls a vendor: no connection, no name look-up, and no file except in kvproxy's own folders."""

import contextlib
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.errors import ModelUnsupported
from kvproxy.installation.hugging_face_hub import prefer_cached_models
from kvproxy.settings import load_settings
from tests.commands.run import NOWHERE
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
from tests.processes import serve
from tests.programs import required
from tests.servers import run_proxy

_REMOTE = re.compile(r"(?:connect|sendto|sendmsg)\(.*sin6?_port=htons\((\d+)\)")
_SWITCHES = ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")
_MODEL_LIBRARIES = set(
    "torch transformers sentence_transformers pandas sklearn scipy matplotlib opentelemetry.sdk".split()
)
# `kvproxy`, which prints the loaded modules at its end.
_PROGRAM = """
import sys
from kvproxy import commands
try:
    commands.main()
finally:
    print("loaded:", *sorted(name for name in sys.modules if "." not in name or name == "opentelemetry.sdk"), flush=True)
"""


def traced(trace: Path) -> list[str]:
    return [
        required("strace"),
        "-D",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-e",
        "trace=connect,sendto,sendmsg",
        "-o",
        str(trace),
    ]


def remote_ports(trace: Path) -> set[int]:
    return {int(port) for port in _REMOTE.findall(trace.read_text())}


def strange_files(home: Path) -> list[str]:
    files = [path.relative_to(home) for path in home.rglob("*") if not path.is_dir()]
    return [str(file) for file in files if Path(".local/share/kvproxy") not in file.parents]


def similar_questions_are_answered(url: str) -> None:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    for question in ("How do I reset my password?", "How can I reset my password?"):
        body = {"model": model, "temperature": 0, "max_tokens": 4, "messages": [{"role": "user", "content": question}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status()
    assert "semantic" in answer.headers["cache-status"]
    assert httpx.get(f"{url}/ui", follow_redirects=True).is_success


@pytest.mark.parametrize("embedder", ["default", "multilingual"])
def test_a_server_connects_to_its_upstream_only_and_loads_no_model_library(tmp_path: Path, embedder: str) -> None:
    port, trace, home = free_port(), tmp_path / "trace", tmp_path / "home"
    home.mkdir()
    removed = (*_SWITCHES, "HF_HUB_OFFLINE", "XDG_DATA_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    with run_plain_upstream() as upstream:
        flags = ["--port", str(port), "--upstream", upstream, "--embedder", embedder]
        command = [*traced(trace), sys.executable, "-c", _PROGRAM, "serve", *flags]
        with serve(command, port, tmp_path / "log", env=kept | {"HOME": str(home)}) as server:
            similar_questions_are_answered(server.url)
            server.process.send_signal(signal.SIGINT)
            server.process.wait(timeout=300)
            (loaded,) = (line for line in server.log.read_text().splitlines() if line.startswith("loaded:"))
    assert remote_ports(trace) == {int(upstream.rsplit(":", 1)[1])}
    assert strange_files(home) == []
    assert "onnxruntime" in loaded.split()
    assert set(loaded.split()) & _MODEL_LIBRARIES == set()


def test_the_embedded_engine_connects_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, because loading torch under strace would take 15 seconds of CPU time."""
    asked: list[Any] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def record_connection(self: socket.socket, address: Any) -> None:
        asked.append(address[0])
        connect(self, address)

    def record_name(host: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket.socket, "connect", record_connection)
    monkeypatch.setattr(socket, "getaddrinfo", record_name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in (*_SWITCHES, "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    settings = load_settings(data=tmp_path / "home/.local/share/kvproxy", engine={"num_blocks": 64})
    prefer_cached_models(settings)
    with run_proxy(settings) as (url, _):
        similar_questions_are_answered(url)
    assert set(asked) == {"127.0.0.1"}
    assert strange_files(tmp_path / "home") == []


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
