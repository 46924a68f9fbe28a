"""A shell whose `kvproxy` runs in this process: a process for each command of the pages would take a second of CPU time."""

import base64
import contextlib
import os
import re
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.commands.run import ROOT, kvproxy

BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
WIDTH = 80
"""Columns of the terminal."""
MARK = "----- end of command"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# A file as standard output stands for a terminal.
_FUNCTION = """
kvproxy() {
  {
    local terminal=0 code error
    [ -f /dev/fd/1 ] && terminal=1
    printf '%%s\\0' "$PWD" "$terminal" "$@" | base64 -w 0 >&3
    echo >&3
    read -r code error <&3
    printf %%s "$error" | base64 -d >&2
    cat <&3
    return "$code"
  } 3<>/dev/tcp/127.0.0.1/%d
}
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a page, and its output."""

    command: str
    output: str


def steps(text: str) -> list[Step]:
    """Return the commands of a page with their shown output."""
    parts = [part for block in BLOCK.findall(text) for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [Step(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def with_output(text: str, done: Iterable[Step]) -> str:
    """Return a page with other output of its commands."""
    left = iter(done)

    def fill(block: re.Match[str]) -> str:
        shown = [next(left) for _ in steps(block[0])]
        lines = [line.rstrip() for step in shown for line in (f"$ {step.command}", *step.output.splitlines())]
        return "\n".join(["```console", *lines, "```"])

    return BLOCK.sub(fill, text)


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def run_commands(
    commands: Iterable[str], url: str, folder: Path, width: int | None = None, **environment: str
) -> tuple[list[tuple[Step, int]], str]:
    """Run commands in one shell with a proxy at a URL. Return each step with its exit code, and the standard error.

    `kvproxy` writes to a terminal of `width` columns, or to a pipe.
    """
    todo = list(commands)
    with _kvproxy_function(url, width, **environment) as function, tempfile.TemporaryFile() as out:
        lines = [function, "set -o pipefail", *(f'{line}\necho "{MARK} $?"' for line in todo)]
        text = "\n".join(lines).encode()
        done = subprocess.run(
            ["bash"], input=text, stdout=out, stderr=subprocess.PIPE, cwd=folder, env=os.environ, timeout=240
        )
        out.seek(0)
        parts = re.split(rf"{MARK} (\d+)\n", _STYLE.sub("", out.read().decode()))
    ran = zip(todo, parts[:-1:2], parts[1::2], strict=True)
    return [(Step(line, output), int(code)) for line, output, code in ran], done.stderr.decode()


@contextlib.contextmanager
def _kvproxy_function(url: str, width: int | None, **environment: str) -> Iterator[str]:
    """Yield the definition of the shell function; its proxy is at a URL."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            folder, terminal, *arguments = base64.b64decode(self.rfile.readline()).decode().split("\0")[:-1]
            with contextlib.chdir(folder):
                done = kvproxy(*arguments, url=url, columns=width if terminal == "1" else None, **environment)
            error = base64.b64encode(done.stderr.encode()).decode()
            self.wfile.write(f"{done.returncode} {error}\n{done.stdout}".encode())

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield _FUNCTION % server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
