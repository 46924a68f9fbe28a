"""The help: panels, short lines, plain sentences, and no slow imports."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kvproxy.commands import app
from tests.commands.run import ROOT, kvproxy

ROOT_COMMAND: Any = typer.main.get_command(app)


def commands(command: Any = ROOT_COMMAND, path: str = "kvproxy") -> Iterator[tuple[str, Any]]:
    for name, child in getattr(command, "commands", {}).items():
        yield f"{path} {name}", child
        yield from commands(child, f"{path} {name}")


def test_commands_are_grouped_into_panels() -> None:
    panels = [command.rich_help_panel for command in ROOT_COMMAND.commands.values()]
    assert set(panels) == {"Run", "Inspect", "Analyse", "Operate"}


_COMMON = {"url", "token", "store", "data", "as_json", "limit", "wide", "columns"}


def test_each_command_has_one_short_line_an_example_and_json_output() -> None:
    for path, command in commands():
        summary, *_ = (command.help or "").split("\n\n")
        assert len(summary) <= 60, path
        assert re.fullmatch(r"[A-Z][^\n]*\.", summary), path
        if not hasattr(command, "commands"):
            own = {each.name for each in command.params} - _COMMON
            assert "Example: kvproxy" in command.help or len(own) <= 3, path
            assert any("--json" in parameter.opts for parameter in command.params), path


def test_the_help_of_each_option_is_one_sentence() -> None:
    wrong = [
        f"{path} {parameter.name}: {parameter.help}"
        for path, command in commands()
        for parameter in command.params
        if parameter.name != "help" and not re.fullmatch(r"[A-Z\"](?:(?!\. ).)*\.", parameter.help or "")
    ]
    assert wrong == []


def test_the_help_has_no_line_breaks_in_paragraphs() -> None:
    for path, command in commands():
        assert not re.search(r"[^\n]\n[^\n]", command.help or ""), path


def test_the_help_shows_all_text_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 400)
    for path, command in commands():
        texts = [command.help, *(f"{each.help} {each.show_default}" for each in command.params)]
        if bracketed := re.findall(r"\[[^\]\n]*\]", "\n".join(map(str, texts))):
            shown = kvproxy(*path.split()[1:], "--help").stdout
            assert [text for text in bracketed if text not in shown] == [], path


def test_help_as_a_process_loads_nothing_that_is_slow() -> None:
    heavy = "torch transformers faiss numpy pandas onnxruntime pydantic httpx starlette aiohttp orjson".split()
    script = f"import atexit, sys; atexit.register(lambda: print([name for name in {heavy!r} if name in sys.modules]));"
    script += "import kvproxy.commands; kvproxy.commands.main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--help"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "serve" in done.stdout
    assert done.stdout.endswith("[]\n")


def test_ctrl_c_during_the_imports_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    arguments = [sys.executable, "-m", "kvproxy", "--help"]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths}, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=30)[1], process.returncode) == (b"", 130)


def test_the_version() -> None:
    assert kvproxy("--version").stdout.startswith("kvproxy 0.")
