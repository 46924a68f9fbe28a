"""The commands of the recipe for vLLM print the documented output.

`python -m tests.engines.test_recipe FOLDER` writes the output into the recipe.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.commands.run import ROOT
from tests.engines.conftest import Table
from tests.engines.running import ENVIRONMENT, await_health
from tests.ports import free_port
from tests.tour.shell import MARK, Step, steps, with_output
from tests.tour.test_tour import normal

RECIPE = ROOT / "docs/recipes/in-front-of-vllm.md"
START = re.compile(r"```sh\n(.*?)```", re.DOTALL)
PORTS = ("8000", "5557", "5558", "8484")
_COUNTED = [
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
    (re.compile(r"\d+ batches"), "<n> batches"),
    (re.compile(r"\d+ s ago"), "<age> s ago"),
    # A slow response is stored too late for its header.
    (re.compile(r" stored;|; key=\"[0-9a-f]+\""), ""),
]


class Recipe:
    def __init__(self, engines: Path) -> None:
        self.text = RECIPE.read_text()
        self._ports = {port: str(free_port()) for port in PORTS}
        self._engines = engines
        self._proxy = f"http://127.0.0.1:{self._ports['8484']}"

    def _with_free_ports(self, text: str) -> str:
        for port, free in self._ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        return text.replace("kvproxy serve", f"kvproxy serve --port {self._ports['8484']}")

    def with_documented_ports(self, text: str) -> str:
        for port, free in self._ports.items():
            text = text.replace(free, port)
        return text

    def run(self, folder: Path) -> list[Step]:
        with contextlib.ExitStack() as stack:
            for number, command in enumerate(START.findall(self.text)):
                stack.enter_context(self._server(command, folder, number))
            shell = stack.enter_context(
                subprocess.Popen(
                    ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT,
                    env=self._variables(folder), text=True,
                )
            )  # fmt: skip
            return [Step(each.command, self._step(shell, each.command)) for each in steps(self.text)]

    def _step(self, shell: "subprocess.Popen[str]", command: str) -> str:
        assert shell.stdin is not None
        assert shell.stdout is not None
        self._settled()
        shell.stdin.write(f"{self._with_free_ports(command)}\necho '{MARK}'\n")
        shell.stdin.flush()
        lines = []
        for line in shell.stdout:
            if MARK in line:
                break
            lines.append(line)
        return "".join(lines)

    def _settled(self) -> None:
        before: Any = None
        since, end = time.monotonic(), time.monotonic() + 60
        while time.monotonic() - since < 0.7 and time.monotonic() < end:
            (each,) = httpx.get(f"{self._proxy}/admin/upstreams").raise_for_status().json()
            known = each["metrics"] and each["metrics"]["queries"]
            now = ([stream["next"] for stream in each["streams"]], known, each["reuse"])
            if now != before or not each["complete"]:
                before, since = now, time.monotonic()
            time.sleep(0.05)

    def _variables(self, folder: Path) -> dict[str, str]:
        path = f"{self._engines / 'vllm' / 'bin'}:{os.environ['PATH']}"
        ours = Path(sys.executable).parent
        # The engine's folder contains another Python.
        (folder / "bin").mkdir(exist_ok=True)
        link = folder / "bin" / "kvproxy"
        if not link.exists():
            link.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{ours / "python"}" -m kvproxy "$@"\n')
            link.chmod(0o755)
        variables = {
            **os.environ,
            **ENVIRONMENT,
            "PATH": f"{folder / 'bin'}:{path}",
            "KVPROXY_URL": self._proxy,
            "KVPROXY_DATA": str(folder / "data"),
            "KVPROXY_ROUTING__METRICS_INTERVAL": "0.2",
            "NO_COLOR": "1",
        }
        for name in ("OPENAI_API_KEY", "COLUMNS", "LINES"):
            variables.pop(name, None)
        return variables

    @contextlib.contextmanager
    def _server(self, command: str, folder: Path, number: int) -> Iterator[None]:
        log = folder / f"{number}.log"
        port = self._ports["8484" if command.startswith("kvproxy") else "8000"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", self._with_free_ports(command)],
                stdout=output, stderr=output, cwd=ROOT, env=self._variables(folder), start_new_session=True,
            )  # fmt: skip
        try:
            await_health(f"http://127.0.0.1:{port}", process, log)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def same(text: str) -> str:
    for pattern, replacement in _COUNTED:
        text = pattern.sub(replacement, text)
    return normal(text)


def test_the_recipe_prints_what_it_says(engines: Path, tmp_path: Path, table: Table) -> None:
    ran, shown = Recipe(engines).run(tmp_path), steps(RECIPE.read_text())
    assert len(ran) == len(shown) > 10
    for step, claimed in zip(ran, shown, strict=True):
        assert same(step.output) == same(claimed.output), step.command
    explained = next(step for step in ran if step.command.startswith("kvproxy explain"))
    asked = ran[ran.index(explained) + 1]
    told = re.search(r"prefix +([\d,]+) of ([\d,]+)", explained.output)
    assert told is not None
    assert f"prefix {told[1].replace(',', '')}/{told[2].replace(',', '')}" in asked.output
    table("the recipe for vLLM", f"{len(ran)} commands print what it says")


def refresh(engines: Path) -> None:
    recipe = Recipe(engines)
    with tempfile.TemporaryDirectory() as folder:
        ran = recipe.run(Path(folder))
    done = (Step(step.command, recipe.with_documented_ports(step.output)) for step in ran)
    RECIPE.write_text(with_output(recipe.text, done))


if __name__ == "__main__":
    refresh(Path(sys.argv[1]).resolve())
