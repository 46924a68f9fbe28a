"""Runs commands in this process or in a process of their own."""

import contextlib
import functools
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import typer.main

from kvproxy.commands import main
from kvproxy.http.services import Services

ROOT = Path(__file__).resolve().parents[2]
_REMOVED_VARIABLES = ("OPENAI_API_KEY", "KVPROXY_ADMIN_TOKEN", "FORCE_COLOR")
Demo = tuple[str, Services]
NOWHERE = "http://127.0.0.1:9"
# Reads the annotations of all commands, in 50 ms.
_get_command = functools.cache(typer.main.get_command)


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def variables(url: str, more: dict[str, str]) -> dict[str, str]:
    """The environment of a command whose proxy is at a URL."""
    own = {name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES}
    return own | {"KVPROXY_URL": url, "NO_COLOR": "1", "COLUMNS": "120"} | more


class _Screen(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def kvproxy(
    *arguments: object, url: str = NOWHERE, stdin: bytes = b"", columns: int | None = None, **environment: str
) -> Done:
    """Run a command in this process, in a pipe or at a terminal of some columns; it must never print a traceback."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    if columns is not None:
        out, environment = _Screen(io.BytesIO(), "utf-8", write_through=True), environment | {"COLUMNS": str(columns)}
    code = 0
    with (
        mock.patch.object(typer.main, "get_command", _get_command),
        mock.patch.dict(os.environ, variables(url, environment), clear=True),
        mock.patch.object(sys, "argv", ["kvproxy", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8")),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    done = Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))
    assert "Traceback" not in done.stderr, done.stderr
    assert "kvproxy: unexpected" not in done.stderr, done.stderr
    return done


def process(*arguments: object, url: str = NOWHERE, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a process."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, cwd=ROOT, env=variables(url, environment), timeout=300
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def command(*arguments: object) -> list[str]:
    """The command line of a process."""
    return [sys.executable, "-m", "kvproxy", *map(str, arguments)]


def result(*arguments: object, url: str = NOWHERE, **environment: str) -> Any:
    """Run a command with `--json` and return its document."""
    done = kvproxy(*arguments, "--json", url=url, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def printed_facts(*arguments: object, url: str = NOWHERE) -> dict[str, str]:
    """Run a command and return the names and values that it prints for people."""
    done = kvproxy(*arguments, url=url, columns=400)
    assert done.returncode == 0, done.stderr
    lines = [re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.splitlines()]
    return {line[0]: line[1] for line in lines}


def ask(url: str, question: str, system: str = "", **more: Any) -> httpx.Response:
    """Ask a question of the demo model."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    headers = more.pop("headers", {})
    body = {"model": "demo", "messages": messages} | more
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=300)
