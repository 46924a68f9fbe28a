"""The completion of values on the command line, without a running proxy."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

from kvproxy import CacheSettings, open_cache
from kvproxy.clients.client_keys import add_client
from kvproxy.commands import app
from kvproxy.operations.journal import DirectJournal
from kvproxy.operations.record_query import RecordQuery
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, result
from tests.journal.sessions.requests import Sessions, request, user


def completions(data: Path, line: str) -> list[str]:
    """The values that bash offers at the end of a command line."""
    words = line.split(" ")
    environment = {
        "_KVPROXY_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "KVPROXY_DATA": str(data),
    }
    out = io.StringIO()
    with mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        typer.main.get_command(app).main([], prog_name="kvproxy")
    return out.getvalue().split()


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("kvproxy log --reason hit-", ["hit-exact", "hit-semantic", "hit-shared"]),
        ("kvproxy log --layer ex", ["exact"]),
        ("kvproxy log --tenant s", ["search-team"]),
        ("kvproxy keys rotate ", ["search-team"]),
        ("kvproxy keys add ", []),
        ("kvproxy upstreams drain http", ["http://127.0.0.1:9"]),
        ("kvproxy serve --eviction-policy s3", ["s3fifo"]),
    ],
)
def test_known_values_are_completed(tmp_path: Path, line: str, values: list[str]) -> None:
    (tmp_path / "kvproxy.toml").write_text('upstreams = ["http://127.0.0.1:9"]\n')
    add_client(load_settings(data=tmp_path), "search-team")
    assert completions(tmp_path, line) == values


def test_recorded_and_stored_values_are_completed(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"))
    sessions.add(request([user("Hi.")], 10, 0, 0))
    sessions.close()
    with open_cache(tmp_path / "responses.db", CacheSettings(semantic=False)) as cache:
        cache.set("What is a block?", "Tokens.", tags=["handbook"])
    (record,) = DirectJournal(tmp_path).records(RecordQuery())
    for line in ("log show ", "explain --request "):
        assert completions(tmp_path, f"kvproxy {line}{record.request_id[:1]}") == [record.request_id]
    assert completions(tmp_path, "kvproxy sessions show ") == [
        str(each["id"]) for each in result("sessions", "--data", tmp_path)
    ]
    assert completions(tmp_path, "kvproxy log --model ") == [record.model]
    for command in ("log", "log top", "sessions", "savings", "cache ls"):
        assert completions(tmp_path, f"kvproxy {command} --tenant ") == [record.tenant]
    (entry,) = result("cache", "ls", "--store", tmp_path / "responses.db")
    for command in ("show", "rm", "pin", "reject"):
        assert completions(tmp_path, f"kvproxy cache {command} {entry['id'][:2]}") == [entry["id"][:12]]
    assert completions(tmp_path / "empty", "kvproxy cache show ") == []


def test_the_completion_reads_the_named_data_folder(tmp_path: Path) -> None:
    add_client(load_settings(data=tmp_path), "search-team")
    assert completions(tmp_path / "empty", f"kvproxy log --data {tmp_path} --tenant ") == ["search-team"]


def test_invalid_settings_complete_nothing(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text("upstreams = 3\n")
    assert completions(tmp_path, "kvproxy keys rotate ") == []


def _commands_with(option: str, group: Any, path: str = "kvproxy") -> Iterator[str]:
    for name in group.commands:
        command = group.commands[name]
        if any(option in parameter.opts for parameter in command.params):
            yield f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _commands_with(option, command, f"{path} {name}")


def test_columns_are_completed_in_every_command(tmp_path: Path) -> None:
    commands = list(_commands_with("--columns", typer.main.get_command(app)))
    assert len(commands) > 15
    assert [command for command in commands if not completions(tmp_path, f"{command} --columns ")] == []


@pytest.mark.parametrize(
    "options", ["log", "log top", "cache ls", "cache queue", "sessions", "sessions --by day", "savings --bill"]
)
def test_the_completed_columns_are_the_fields_of_the_rows(tmp_path: Path, options: str) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"))
    sessions.add(request([user("Hi.")], 10, 0, 0))
    sessions.close()
    with open_cache(tmp_path / "responses.db", CacheSettings(semantic=False)) as cache:
        cache.set("What is a block?", "Tokens.")
    head = kvproxy(*options.split(), "--csv", "--data", tmp_path).stdout.splitlines()[0]
    assert completions(tmp_path, f"kvproxy {options} --columns ") == head.split(",")


def test_columns_are_completed_after_a_comma_except_the_given_ones(tmp_path: Path) -> None:
    assert completions(tmp_path, "kvproxy cache usage --columns hits,b") == ["hits,bytes"]
    assert completions(tmp_path, "kvproxy cache usage --columns name,") == ["name,entries", "name,bytes", "name,hits"]


@pytest.mark.parametrize(("shell", "script"), [("zsh", "#compdef "), ("fish", "complete --command ")])
@pytest.mark.parametrize("form", ["{option} {shell}", "{option}={shell}"])
def test_the_completion_of_a_named_shell_is_shown(shell: str, script: str, form: str) -> None:
    done = kvproxy(*form.format(option="--show-completion", shell=shell).split())
    assert (done.returncode, script in done.stdout) == (0, True), done


def test_the_completion_of_a_named_shell_is_installed(tmp_path: Path) -> None:
    assert kvproxy("--install-completion", "fish", HOME=str(tmp_path)).returncode == 0
    assert "complete --command " in next(tmp_path.rglob("*.fish")).read_text()


def test_an_unknown_shell_is_refused() -> None:
    done = kvproxy("--install-completion", "tcsh")
    assert done.returncode == 2
    assert "--install-completion is for bash, zsh, fish, powershell, pwsh, not 'tcsh'" in done.stderr
