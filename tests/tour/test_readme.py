"""The README's tour is run against a fresh proxy, and prints what the README says.

python -m tests.tour.test_readme    # writes the printed output into the README
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kvproxy.settings import load_settings
from tests.servers import run_proxy

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
MARK = "----- end of command -----"
# What differs from run to run: ids, times, and how often the caches were asked; and a similarity's last digits, from
# processor to processor (see index/minilm).
VARIABLE = [
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "<hex>"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "<hex>"),
    (re.compile(r"(?<=similarity=0\.9)\d+|(?<=verifier=0\.9)\d+"), "<digits>"),
    (re.compile(r"ttl=\d+"), "ttl=<s>"),
    (re.compile(r"verifier=0\.\d+"), "verifier=<p>"),
    (re.compile(r"(?<=[ >])\d+s(?= )"), "<age>"),
    (re.compile(r" +"), " "),
]


def commands(text: str) -> list[str]:
    return [line[2:] for block in BLOCK.findall(text) for line in block.splitlines() if line.startswith("$ ")]


def run_tour(text: str) -> list[str]:
    """What each command prints, in one shell, against a proxy of its own."""
    with tempfile.TemporaryDirectory() as data:
        settings = load_settings(data=data, engine={"num_blocks": 1024})
        with run_proxy(settings) as (url, _):
            lines = [f"{line.replace('http://127.0.0.1:8484', url)}\necho '{MARK}'" for line in commands(text)]
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            variables = os.environ | {"KVPROXY_URL": url, "NO_COLOR": "1", "COLUMNS": "110", "PATH": path}
            done = subprocess.run(
                ["bash"], input="\n".join(lines), capture_output=True, text=True, cwd=ROOT, env=variables, timeout=120
            )
    assert done.stderr == ""
    return [part.lstrip("\n") for part in done.stdout.replace("\r", "").split(f"{MARK}\n")[:-1]]


def normal(text: str) -> str:
    for pattern, replacement in VARIABLE:
        text = pattern.sub(replacement, text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def written(text: str) -> Iterator[str]:
    """The output that the README shows for each command."""
    for block in BLOCK.findall(text):
        for part in block.split("$ ")[1:]:
            yield part.partition("\n")[2]


def test_the_tour_prints_what_the_readme_says() -> None:
    text = README.read_text()
    printed = run_tour(text)
    shown = list(written(text))
    assert len(printed) == len(shown) > 8
    for command, real, claimed in zip(commands(text), printed, shown, strict=True):
        assert normal(real) == normal(claimed), command


def refresh() -> None:
    """Write the real output into the README."""
    text = README.read_text()
    printed = iter(run_tour(text))

    def fill(block: re.Match[str]) -> str:
        lines = [line for line in block[1].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"{line}\n{_trimmed(next(printed))}" for line in lines) + "```"

    README.write_text(BLOCK.sub(fill, text))


def _trimmed(output: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


if __name__ == "__main__":
    refresh()
