"""Every command line of the documentation is run by a test, or is a checked exception."""

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from kvproxy.commands import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCKS = re.compile(r"```(sh|bash|console)\n(.*?)```", re.DOTALL)

# Pages whose `console` blocks are run, all of them, by the test that is named.
RUN = {
    "README.md": "tests/tour/test_tour.py",
    "docs/journal.md": "tests/tour/test_journal.py",
    "docs/logs.md": "tests/docs/test_console.py",
    "docs/quickstart.md": "tests/tour/test_quickstart.py",
    "docs/tour.md": "tests/tour/test_tour.py",
    "docs/troubleshooting.md": "tests/tour/test_quickstart.py",
    "docs/upgrading.md": "tests/tour/test_quickstart.py",
    # With a real vLLM: `make test-engines`.
    "docs/recipes/in-front-of-vllm.md": "tests/engines/test_recipe.py",
}

# What is not run, by the program that a line begins with. Those of kvproxy itself are checked against its commands and options.
NOT_RUN = {
    "kvproxy": "serves until it is stopped, or needs servers or files of the reader's own",
    "vllm": "a real engine: make test-engines",
    "claude": "an agent with an account",
    "qwen": "an agent in front of a real engine",
    "llama-server": "a real engine: make test-engines",
    "pip": "changes the environment that runs the tests; the extras that it names are checked",
    "~/kvproxy-venv/bin/pip": "downloads gigabytes; make test-wheel serves from the wheel",
    "python3": "makes the reader's virtual environment",
    "python": "takes minutes, or a GPU; the module that it runs is checked",
    "make": "takes minutes; the target is checked",
    "export": "sets the reader's path",
    "set": "belongs to the lines after it",
    "sudo": "changes the machine",
    "podman": "needs a registry; tests/deploy/test_container.py checks the Dockerfile",
    "docker": "needs a registry; tests/deploy/test_compose_and_kubernetes.py checks the file",
    "sed": "writes a file of pairs; tests/commands/test_calibrate_stream.py runs it",
    "cp": "copies a file of settings for the reader to edit",
    "(umask": "writes below /etc",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A command line of a page; `prompt` says whether it stands behind a `$`, with what it prints below."""

    page: str
    text: str
    prompt: bool

    @property
    def program(self) -> str:
        """The first program of the command, without leading variables."""
        words = [word for word in self.text.split() if not re.match(r"[A-Z_]+=", word)]
        return words[0] if words else ""


def command_lines(page: Path) -> Iterator[Line]:
    """The command lines in a page's blocks, continued ones joined."""
    name = str(page.relative_to(ROOT))
    for kind, block in _BLOCKS.findall(page.read_text()):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if kind == "console":
                if line.startswith("$ "):
                    yield Line(name, line[2:], True)
            elif line.strip() and not line.startswith("#"):
                yield Line(name, line, False)


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
    for call in ("serve --upstream http://x", "cache rm --tag x", "log -f"):
        assert wrong(call.split()) is None
    for call in ("serve --upstreams http://x", "cache remove", "severs"):
        assert wrong(call.split()) is not None
    assert len(ALL) > 80
    assert sum(len(list(calls(line.text))) for line in ALL) > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_call_of_kvproxy_names_commands_and_options_that_there_are(page: Path) -> None:
    found = [call for line in command_lines(page) for call in calls(line.text)] + list(inline_calls(page))
    # A table of flags may name several words for one place: `kvproxy cache ls|show`.
    problems = {" ".join(call): problem for call in found if (problem := wrong(call)) is not None}
    assert problems == {}


def test_every_line_is_run_or_an_exception() -> None:
    left = {
        f"{line.page}: {line.text}"
        for line in ALL
        if not (line.prompt and line.page in RUN) and line.program not in NOT_RUN
    }
    assert left == set(), "run them by a tour, or name the reason in NOT_RUN"


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
