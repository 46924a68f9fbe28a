"""llama.cpp's server in a process, and hearth in front of it."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.engines.running import await_health
from tests.polling import until
from tests.ports import free_port

MODEL = "gemma-3-270m-q4_k_m.gguf"


class LlamaServer:
    def __init__(self, engines: Path, folder: Path, slots: int = 2, *more: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        folder.mkdir(exist_ok=True)
        # Repacked weights use AMX, which some virtual machines report but do not enable.
        self.command = [
            str(engines / "llama-server"), "--model", str(engines / MODEL), "--alias", "gemma", "--host", "127.0.0.1",
            "--port", str(port), "--ctx-size", str(4096 * slots), "--parallel", str(slots), "--threads", "2", "--slots",
            "--slot-save-path", str(folder), "--swa-full", "--no-repack", *more,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await_health(self.url, self._process)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()


@contextlib.contextmanager
def llama_server(engines: Path, folder: Path, slots: int = 2, *more: str) -> Iterator[LlamaServer]:
    server = LlamaServer(engines, folder, slots, *more)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def hearth(command: Path, upstream: str, folder: Path) -> Iterator[str]:
    port = free_port()
    arguments = [str(command), "serve", "--upstream", upstream, "--port", str(port), "--cache-dir", str(folder)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(f"{url}/v1/models", timeout=5)
            return True
        return False

    try:
        until(answers, 180)
        yield url
    finally:
        process.kill()
        process.wait()
