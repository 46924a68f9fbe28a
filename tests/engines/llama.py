"""llama.cpp's server, and hearth in front of it, in processes of their own."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.ports import free_port

PATIENCE = 180.0
MODEL = "gemma-3-270m-q4_k_m.gguf"


class LlamaServer:
    """One `llama-server`, which can be killed and started again at the same port.

    Args:
        engines: the folder of the engines.
        folder: where its slots are saved.
        slots: how many there are.
        more: more flags.
    """

    def __init__(self, engines: Path, folder: Path, slots: int = 2, *more: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        folder.mkdir(exist_ok=True)
        self.command = [
            str(engines / "llama-server"), "--model", str(engines / MODEL), "--alias", "gemma", "--host", "127.0.0.1",
            "--port", str(port), "--ctx-size", str(4096 * slots), "--parallel", str(slots), "--threads", "2", "--slots",
            "--slot-save-path", str(folder), "--swa-full", *more,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await_health(self.url, self._process)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()


def await_health(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a server answers."""
    end = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, "it ended"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        assert time.monotonic() < end, "it did not start"
        time.sleep(0.1)


@contextlib.contextmanager
def llama_server(engines: Path, folder: Path, slots: int = 2, *more: str) -> Iterator[LlamaServer]:
    """One that answers; it is killed at the end."""
    server = LlamaServer(engines, folder, slots, *more)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def hearth(command: Path, upstream: str, folder: Path) -> Iterator[str]:
    """hearth-llm in front of a llama-server with one slot, which saves to the same folder; its URL."""
    port = free_port()
    arguments = [str(command), "serve", "--upstream", upstream, "--port", str(port), "--cache-dir", str(folder)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/v1/models", timeout=5)
                break
            assert time.monotonic() < end, "hearth did not start"
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()
