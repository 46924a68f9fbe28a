"""Command lines of the documentation name existing commands, options, targets, extras, and modules."""

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kvproxy.commands import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCKS = re.compile(r"```(sh|bash|console)\n(.*?)```", re.DOTALL)


def command_lines(page: Path) -> Iterator[str]:
    """The command lines in a page's blocks, continued ones joined."""
    for kind, block in _BLOCKS.findall(page.read_text()):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if kind == "console":
                if line.startswith("$ "):
                    yield line[2:]
            elif line.strip() and not line.startswith("#"):
                yield line


def calls(text: str) -> Iterator[list[str]]:
    """The arguments of each command `kvproxy` in a line of a shell, up to the next pipe, redirection or end of a command."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|;&<>()")
    lexer.whitespace_split = True
    words: list[str] | None = None
    begins = True
    try:
        for token in lexer:
            if token and set(token) <= set("|;&<>()"):
                if words is not None:
                    yield words
                words, begins = None, True
            elif words is not None:
                words.append(token)
            elif begins and token.split("/")[-1] == "kvproxy":
                words = []
            else:
                begins = begins and re.fullmatch(r"[A-Z_]+=.*", token) is not None
    except ValueError:
        # A quote that belongs to a part of the shell which is not about kvproxy.
        pass
    if words is not None:
        yield words


def inline_calls(page: Path) -> Iterator[list[str]]:
    """The arguments of each `kvproxy ...` in running text."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for call in re.findall(r"`(kvproxy [^`\n]+)`", text):
        yield from calls(call)


ALL = [line for page in PAGES for line in command_lines(page)]
ROOT_COMMAND: Any = typer.main.get_command(app)


def wrong(arguments: list[str]) -> str | None:
    """Return the unknown command or option of a call of kvproxy, or None."""
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
    for call in ("serve --upstream http://x", "cache rm --tag x", "log -f"):
        assert wrong(call.split()) is None
    for call in ("serve --upstreams http://x", "cache remove", "severs"):
        assert wrong(call.split()) is not None
    assert len(ALL) > 80
    assert sum(len(list(calls(line))) for line in ALL) > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_call_of_kvproxy_names_commands_and_options_that_there_are(page: Path) -> None:
    found = [call for line in command_lines(page) for call in calls(line)] + list(inline_calls(page))
    # A table of flags may name several words for one place: `kvproxy cache ls|show`.
    problems = {" ".join(call): problem for call in found if (problem := wrong(call)) is not None}
    assert problems == {}


def test_targets_extras_and_modules_in_commands_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line in ALL:
        if line.startswith("make "):
            assert line.split()[1] in targets, line
        for extra in re.findall(r"kvproxy\[([\w,]+)\]", line):
            assert set(extra.split(",")) <= set(extras), line
        for module in re.findall(r"python -m (tests[\w.]*)", line):
            assert importlib.util.find_spec(module) is not None, line
