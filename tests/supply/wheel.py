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
from pathlib import Path

import httpx

from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
from tests.processes import serve

QUESTIONS = ("How do I reset my password?", "How do I reset my password?", "How can I reset my password?")
EXPECTED = ("fwd=uri-miss", "exact", "semantic")


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
    port, found = free_port(), list[str]()
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "KVPROXY_CACHE__LOOKUP_TIMEOUT": "30"}
    with run_plain_upstream() as upstream:
        options = ["--port", str(port), "--data", str(folder / "data"), "--upstream", upstream]
        command = [str(venv / "bin/kvproxy"), "serve", *options]
        with serve(command, port, folder / "log", env=environment, cwd=folder) as proxy:
            for question in QUESTIONS:
                body = {"model": "m", "messages": [{"role": "user", "content": question}]}
                answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60)
                assert answer.status_code == 200, answer.text
                found.append(answer.headers["cache-status"])
                time.sleep(1)
    assert all(part in status for part, status in zip(EXPECTED, found, strict=True)), found


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
