"""Installs the wheel into a clean venv as a user does, and serves an exact and a semantic hit from there.

python -m tests.supply.wheel FOLDER [EXTRA...]

The installation downloads packages. Prints their number and size, and the duration of the installation.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from tests.ports import free_port

QUESTIONS = ("How do I reset my password?", "How do I reset my password?", "How can I reset my password?")
EXPECTED = ("fwd=uri-miss", "exact", "semantic")


class Upstream(BaseHTTPRequestHandler):
    """A server with one response."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": "Use the link."}, "finish_reason": "stop"}
        body = json.dumps({"id": "x", "object": "chat.completion", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def install(wheel: Path, venv: Path, extras: list[str]) -> float:
    """Install a wheel with extras; the seconds that it takes."""
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    wanted = f"kvproxy[{','.join(extras)}] @ {wheel.resolve().as_uri()}" if extras else str(wheel)
    began = time.monotonic()
    subprocess.run([venv / "bin/pip", "install", "--quiet", "--no-cache-dir", wanted], check=True)
    return time.monotonic() - began


def measure(venv: Path) -> tuple[int, float]:
    """Packages without pip and setuptools, and their megabytes."""
    listed = subprocess.run([venv / "bin/pip", "list", "--format=json"], capture_output=True, check=True)
    packages = {each["name"] for each in json.loads(listed.stdout)} - {"pip", "setuptools"}
    (site,) = venv.glob("lib/python*/site-packages")
    tools = [site / name for name in ("pip", "setuptools", "pkg_resources", "_distutils_hack")]
    files = [file for file in site.rglob("*") if file.is_file() and not file.is_symlink()]
    size = sum(file.stat().st_size for file in files if not set(tools) & set(file.parents))
    return len(packages), size / 1e6


def check(venv: Path, folder: Path) -> None:
    """Serve an exact and a semantic hit. Raises AssertionError."""
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    Thread(target=upstream.serve_forever, daemon=True).start()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    program = [
        venv / "bin/kvproxy", "serve", "--port", str(port), "--data", str(folder / "data"),
        "--upstream", f"http://127.0.0.1:{upstream.server_port}",
    ]  # fmt: skip
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "KVPROXY_CACHE__LOOKUP_TIMEOUT": "30"}
    with subprocess.Popen(program, env=environment, cwd=folder) as proxy:
        try:
            _wait(url)
            found = []
            for question in QUESTIONS:
                body = {"model": "m", "messages": [{"role": "user", "content": question}]}
                answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
                assert answer.status_code == 200, answer.text
                found.append(answer.headers["cache-status"])
                time.sleep(1)
        finally:
            proxy.terminate()
            upstream.shutdown()
    assert all(part in status for part, status in zip(EXPECTED, found, strict=True)), found


def _wait(url: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise TimeoutError("the proxy did not start within 60 s")


def main() -> None:
    (wheel,) = Path(sys.argv[1]).glob("kvproxy-*.whl")
    folder = Path(tempfile.mkdtemp())
    try:
        seconds = install(wheel, folder / "venv", sys.argv[2:])
        packages, megabytes = measure(folder / "venv")
        print(f"kvproxy{sys.argv[2:] or ''}: {packages} packages, {megabytes:.0f} MB, installed in {seconds:.0f} s")
        check(folder / "venv", folder)
        print("an exact and a semantic hit are served")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
