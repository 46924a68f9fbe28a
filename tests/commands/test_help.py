"""The help: panels, short lines, plain sentences, and no slow imports."""

import json
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

from kvproxy import CacheSettings, open_cache
from kvproxy.commands import app
from kvproxy.doors import COMMAND_PANELS
from tests.commands.run import ROOT, kvproxy
from tests.journal.sessions.requests import Sessions, request, user

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


def test_the_help_shows_all_text_in_brackets() -> None:
    for path, command in commands():
        texts = [command.help, *(f"{each.help} {each.show_default}" for each in command.params)]
        if bracketed := re.findall(r"\[[^\]\n]*\]", "\n".join(map(str, texts))):
            shown = " ".join(kvproxy(*path.split()[1:], "--help").stdout.split())
            assert [text for text in bracketed if text not in shown] == [], path
        assert "\\" not in "\n".join(map(str, texts)), path


def test_the_list_of_commands_has_the_first_line_of_each_help() -> None:
    summaries = {name: summary for panel in COMMAND_PANELS.values() for name, (_, summary) in panel.items()}
    assert summaries == {name: command.help.split("\n\n")[0] for name, command in ROOT_COMMAND.commands.items()}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a journal of one request, and a stored response."""
    folder = tmp_path_factory.mktemp("data")
    sessions = Sessions(str(folder / "journal.db"))
    sessions.add(request([user("Hi.")], 10, 0, 0))
    sessions.close()
    with open_cache(folder / "responses.db", CacheSettings(semantic=False)) as cache:
        cache.set("question", "answer")
    return folder


_LOADED = "import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr));"
_MODELS = {"torch", "transformers", "onnxruntime", "tokenizers", "faiss", "numpy"}
_SERVERS = {"starlette", "fastapi", "uvicorn", "aiohttp", "httpx", "psycopg", "genai_prices"}
_SETTINGS = {"pydantic", "orjson", "asyncio", "rich"}
_NETWORK = {"asyncio", "http.client", "ssl"}
_PROXY = {f"kvproxy.{name}" for name in ("exchange", "index.policies.guards", "flow.path")}
_SESSIONS = "kvproxy.journal.sessions.session_reader"
_REPORTS = {"kvproxy.journal.savings", "kvproxy.journal.miss_explanation", _SESSIONS}


@pytest.mark.parametrize(
    ("arguments", "completion", "unused", "most"),
    [
        ("--help", "", _MODELS | _SERVERS | _SETTINGS, 240),
        ("", "kvproxy l", _MODELS | _SERVERS | _SETTINGS, 240),
        (
            "log",
            "",
            _MODELS | _SERVERS | _PROXY | _REPORTS - {_SESSIONS} | _NETWORK | {"rich", "kvproxy.index.store"},
            405,
        ),
        ("sessions", "", _MODELS | _SERVERS | _PROXY | _NETWORK | {"rich", "kvproxy.index.store"}, 430),
        ("savings", "", _MODELS | _SERVERS | _PROXY | _NETWORK | {"rich"}, 440),
        ("cache ls", "", _MODELS | _SERVERS | _PROXY | _REPORTS | {"rich", "http.client", "kvproxy.clients"}, 420),
        ("keys ls", "", _MODELS | _SERVERS | _PROXY | _NETWORK | {"rich", "kvproxy.index.store"}, 415),
        ("explain hi", "", _MODELS | _SERVERS | _PROXY | _REPORTS | {"rich", "asyncio"}, 400),
    ],
)
def test_a_command_imports_what_its_answer_needs(
    data: Path, arguments: str, completion: str, unused: set[str], most: int
) -> None:
    environment = {"KVPROXY_DATA": str(data), "KVPROXY_PORT": "9", "_KVPROXY_COMPLETE": ""}
    if completion:
        environment |= {"_KVPROXY_COMPLETE": "complete_bash", "COMP_WORDS": completion, "COMP_CWORD": "1"}
    script = f"{_LOADED} sys.argv[0] = 'kvproxy'; import kvproxy.commands; kvproxy.commands.main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments.split()],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
    )
    loaded = set(done.stderr.splitlines()[-1].split())
    assert loaded & unused == set(), done.stderr
    assert len(loaded) < most, len(loaded)
    # No proxy runs, which alone explains a request.
    assert done.returncode == (4 if arguments == "explain hi" else 0), done.stderr


LISTS = [path for path, command in commands() if any(option.name == "csv" for option in command.params)]


@pytest.mark.parametrize("path", LISTS)
def test_each_list_is_printed_as_csv_and_json_lines(data: Path, path: str) -> None:
    words = path.split()[1:]
    for form in ("--csv", "--jsonl"):
        # The function refuses unexpected errors. Lists of a proxy find no proxy, and lists of a session require its name.
        printed = kvproxy(*words, form, url="", KVPROXY_DATA=str(data), KVPROXY_PORT="9")
        assert printed.returncode in (0, 2, 3, 4), printed.stderr
        if printed.returncode == 0 and form == "--jsonl":
            assert all(isinstance(json.loads(line), dict) for line in printed.stdout.splitlines())


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
        assert (process.communicate(timeout=300)[1], process.returncode) == (b"", 130)


def test_the_version() -> None:
    assert kvproxy("--version").stdout.startswith("kvproxy 0.")
