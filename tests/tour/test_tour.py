"""Runs the commands of docs/tour.md against a new proxy; the README shows some of them.

python -m tests.tour.test_tour    # writes the printed output into the page
"""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvproxy.settings import load_settings
from tests.servers import run_proxy
from tests.tour.shell import WIDTH, kvproxy_function

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tour.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
MARK = "----- end of command -----"
STYLE = re.compile(r"\x1b\[[0-9;]*m")
# What differs from run to run: ids, times, and how often the caches were asked; and a similarity's last digits, from
# processor to processor (see index/models/minilm).
VARIABLE = [
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "<hex>"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "<hex>"),
    (re.compile(r"(?<=similarity=0\.9)\d+|(?<=verifier=0\.9)\d+"), "<digits>"),
    (re.compile(r"ttl=\d+"), "ttl=<s>"),
    (re.compile(r"verifier=0\.\d+"), "verifier=<p>"),
    (re.compile(r"\b0\.\d{3}\b"), "<number>"),
    (re.compile(r"(?<=[ >])[\d.]+(ms|s|m)(?= )"), "<age>"),
    (re.compile(r" +"), " "),
]


@dataclass(frozen=True, slots=True)
class Step:
    """A command of the tour, and what it printed."""

    command: str
    output: str


def commands(text: str) -> list[str]:
    return [line[2:] for block in BLOCK.findall(text) for line in block.splitlines() if line.startswith("$ ")]


@contextlib.contextmanager
def terminal(width: int) -> Iterator[tuple[int, list[bytes]]]:
    """A pseudo-terminal to write to, and what was written; complete when the block has ended."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    parts: list[bytes] = []

    def collect() -> None:
        # Linux reports the end of a terminal as an error.
        with contextlib.suppress(OSError):
            while part := os.read(reader, 65_536):
                parts.append(part)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        yield writer, parts
    finally:
        os.close(writer)
        thread.join()
        os.close(reader)


def run_tour(text: str, width: int = WIDTH) -> list[Step]:
    """Run each command of a page in one shell at a terminal, against a proxy of its own."""
    todo = commands(text)
    with tempfile.TemporaryDirectory() as data:
        # However busy the machine is: similar questions are looked up, and answers stored, before an answer is given.
        settings = load_settings(data=data, engine={"num_blocks": 1024}, cache={"lookup_timeout": 60})
        with (
            run_proxy(settings) as (url, _),
            kvproxy_function(url, width) as function,
            terminal(width) as (screen, parts),
        ):
            lines = [f"{line.replace('http://127.0.0.1:8484', url)}\necho '{MARK}'" for line in todo]
            text = "\n".join([function, *lines]).encode()
            done = subprocess.run(
                ["bash"], input=text, stdout=screen, stderr=subprocess.PIPE, cwd=ROOT, env=os.environ, timeout=120
            )
    notes = done.stderr.decode().splitlines()
    assert all(note.startswith("not shown: ") for note in notes if note), notes
    printed = STYLE.sub("", b"".join(parts).decode().replace("\r", "")).split(f"{MARK}\n")
    return [Step(command, part.lstrip("\n")) for command, part in zip(todo, printed[:-1], strict=True)]


def normal(text: str) -> str:
    for pattern, replacement in VARIABLE:
        text = pattern.sub(replacement, text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def written(text: str) -> Iterator[str]:
    """The output that a page shows for each command."""
    for block in BLOCK.findall(text):
        for part in block.split("$ ")[1:]:
            yield part.partition("\n")[2]


def test_the_output_of_the_page_is_current() -> None:
    text = PAGE.read_text()
    shown = list(written(text))
    assert len(shown) > 8
    for step, claimed in zip(run_tour(text), shown, strict=True):
        assert normal(step.output) == normal(claimed), step.command


def test_the_readme_shows_steps_of_the_tour() -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    assert blocks
    page = PAGE.read_text()
    assert [block for block in blocks if block not in page] == []


def filled(text: str, width: int = WIDTH) -> str:
    """A page with the real output of its commands."""
    printed = iter(run_tour(text, width))

    def fill(block: re.Match[str]) -> str:
        lines = [line for line in block[1].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"{line}\n{trimmed(next(printed).output)}" for line in lines) + "```"

    return BLOCK.sub(fill, text)


def trimmed(output: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
