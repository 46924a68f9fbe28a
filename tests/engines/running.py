"""Real engines in processes of their own, with a pool that is small enough to evict."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from kvproxy.demo import model_path
from tests.ports import free_port

PATIENCE = 600.0
"""Seconds that an engine may take to start: 40 on an idle machine."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model, and the pool that makes it evict.

    Attributes:
        folder: of the model, below the folder of the engines; None is the demo model.
        flags: of `vllm serve`.
    """

    name: str
    folder: str | None
    flags: tuple[str, ...]

    def path(self, engines: Path) -> Path:
        return model_path() if self.folder is None else engines / self.folder


PLAIN = Model("demo", None, ("--dtype", "float32", "--max-model-len", "2048", "--num-gpu-blocks-override", "96"))
HYBRID = Model("gemma", "gemma", ("--max-model-len", "2048", "--num-gpu-blocks-override", "420"))


class Vllm:
    """One `vllm serve`, which can be killed and started again at the same ports.

    Args:
        engines: the folder of the engines.
        model: what it serves.
        log: gets what it prints.
        more: more flags; the last one of a name wins.
    """

    def __init__(self, engines: Path, model: Model, log: Path, *more: str) -> None:
        for needed in (engines / "vllm" / "bin" / "vllm", model.path(engines) / "config.json"):
            if not needed.exists():
                pytest.skip(f"{needed} is not there: make test-engines sets it up")
        self.model = model
        self.log = log
        port, events, replay = (free_port() for _ in range(3))
        self.url = f"http://127.0.0.1:{port}"
        self.events, self.replay = f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}"
        told = {
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
            "--prefix-caching-hash-algo", "sha256_cbor", "--kv-events-config", json.dumps(told), *model.flags, *more,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin; `wait` until it answers."""
        environment = os.environ | {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "2",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        with self.log.open("ab") as output:
            # A session of its own, so that a kill reaches the process with the blocks too.
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it is healthy."""
        assert self._process is not None
        end = time.monotonic() + PATIENCE
        while not self._healthy():
            assert self._process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.2)

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """End all its processes at once, as a crash of the machine does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def upstream(self) -> dict[str, str]:
        """Settings of an upstream that follows it."""
        return {"url": self.url, "kv_events": self.events, "kv_replay": self.replay}


@contextlib.contextmanager
def running(*engines: Vllm) -> Iterator[None]:
    """Engines that answer; they are killed at the end."""
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait()
        yield
    finally:
        for engine in engines:
            engine.kill()
