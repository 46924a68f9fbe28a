"""Every command line of the documentation is run by a test, or is a checked exception."""

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from kvproxy.commands import app
from tests.docs.command_lines import NOT_RUN, PAGES, ROOT, RUN, command_lines, inline_calls

ALL = [line for page in PAGES for line in command_lines(page)]
ROOT_COMMAND: Any = typer.main.get_command(app)


def wrong(arguments: list[str]) -> str | None:
    """What a call of kvproxy names that there is not; None where all is well."""
    command = ROOT_COMMAND
    path, known = ["kvproxy"], {"--help", "--version"}
    for word in arguments:
        children = getattr(command, "commands", {})
        if word.startswith("-"):
            name = word.partition("=")[0]
            known |= {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"-h"}
            if name not in known and not re.fullmatch(r"-\w?\d*", name):
                return f"{' '.join(path)} has no option {name}"
        elif word in children:
            command = children[word]
            path.append(word)
        elif children and not command.invoke_without_command and word not in ("...", ".."):
            return f"{' '.join(path)} has no command {word}"
    return None


def test_the_check_finds_unknown_commands_and_options() -> None:
    assert wrong(["serve", "--upstream", "http://x"]) is None
    assert wrong(["cache", "rm", "--tag", "x"]) is None
    assert wrong(["log", "-f"]) is None
    assert wrong(["serve", "--upstreams", "http://x"]) is not None
    assert wrong(["cache", "remove"]) is not None
    assert wrong(["severs"]) is not None


def test_the_docs_have_command_lines() -> None:
    assert len(ALL) > 80
    assert sum(len(line.kvproxy) for line in ALL) > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_call_of_kvproxy_names_commands_and_options_that_there_are(page: Path) -> None:
    found = [call for line in command_lines(page) for call in line.kvproxy] + list(inline_calls(page))
    # A table of flags may name several words for one place: `kvproxy cache ls|show`.
    problems = {" ".join(call): problem for call in found if (problem := wrong(call)) is not None}
    assert problems == {}


def test_every_line_is_run_or_an_exception() -> None:
    left = {
        f"{line.page}: {line.text}"
        for line in ALL
        if not (line.prompt and line.page in RUN) and line.program not in NOT_RUN
    }
    assert left == set(), "run them by a tour, or name the reason in tests/docs/command_lines.py"


def test_the_lists_of_pages_and_exceptions_are_current() -> None:
    assert [test for test in RUN.values() if not (ROOT / test).is_file()] == []
    unused = set(NOT_RUN) - {line.program for line in ALL}
    assert unused == set()


def test_targets_extras_and_modules_in_commands_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line in ALL:
        if line.program == "make":
            assert line.text.split()[1] in targets, line.text
        for extra in re.findall(r"kvproxy\[([\w,]+)\]", line.text):
            assert set(extra.split(",")) <= set(extras), line.text
        for module in re.findall(r"python -m (tests[\w.]*)", line.text):
            assert importlib.util.find_spec(module) is not None, line.text
