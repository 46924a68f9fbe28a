"""Real engines in processes, with pools that are small enough to evict."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from kvproxy.demo import model_path
from tests.polling import until
from tests.ports import free_port

# Of a vLLM server on two cores, without calls home.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
START_SECONDS = 600.0
"""Timeout for the start of an engine, which takes 40 s on an idle machine."""


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    folder: str | None
    flags: tuple[str, ...]

    def path(self, engines: Path) -> Path:
        return model_path() if self.folder is None else engines / self.folder


PLAIN = Model("demo", None, ("--dtype", "float32", "--max-model-len", "2048", "--num-gpu-blocks-override", "96"))
HYBRID = Model("gemma", "gemma", ("--max-model-len", "2048", "--num-gpu-blocks-override", "420"))


def await_health(url: str, process: "subprocess.Popen[bytes]", log: Path | None = None) -> None:
    def is_healthy() -> bool:
        assert process.poll() is None, log.read_text()[-4000:] if log else "the server ended"
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/health", timeout=5).status_code == 200
        return False

    until(is_healthy, START_SECONDS)


class Vllm:
    def __init__(self, engines: Path, model: Model, log: Path, *more: str) -> None:
        for needed in (engines / "vllm" / "bin" / "vllm", model.path(engines) / "config.json"):
            if not needed.exists():
                pytest.skip(f"{needed} is missing: run make test-engines")
        self.model = model
        self.log = log
        port, events, replay = (free_port() for _ in range(3))
        self.url = f"http://127.0.0.1:{port}"
        self.events, self.replay = f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}"
        events_config = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://*:{replay}",
        }
        # On a CPU the size of a block is a multiple of 32.
        self._command = [
            str(engines / "vllm" / "bin" / "vllm"), "serve", str(model.path(engines)),
            "--served-model-name", model.name, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager",
            "--block-size", "32", "--max-num-seqs", "8", "--enable-prompt-tokens-details",
            "--prefix-caching-hash-algo", "sha256_cbor", "--kv-events-config", json.dumps(events_config), *model.flags, *more,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = os.environ | ENVIRONMENT | {"VLLM_SERVER_DEV_MODE": "1"}
        with self.log.open("ab") as output:
            # In a session of its own, so that a kill ends its child processes too.
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def wait(self) -> None:
        assert self._process is not None
        await_health(self.url, self._process, self.log)

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def upstream(self) -> dict[str, str]:
        return {"url": self.url, "kv_events": self.events, "kv_replay": self.replay}


@contextlib.contextmanager
def running(*engines: Vllm) -> Iterator[None]:
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait()
        yield
    finally:
        for engine in engines:
            engine.kill()
