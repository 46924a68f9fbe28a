"""The command lines of the documentation, and the tests that run them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    "llama-server": "a real engine: make test-engines",
    "pipx": "installs a package; tests/structure/test_wheel.py serves from the wheel",
    "pip": "changes the environment that runs the tests; the extras that it names are checked",
    "~/kvproxy-venv/bin/pip": "downloads gigabytes; tests/structure/test_wheel.py serves from the wheel",
    "python3": "makes the reader's virtual environment",
    "python": "takes minutes, or a GPU; the module that it runs is checked",
    "make": "takes minutes; the target is checked",
    "export": "sets the reader's path",
    "set": "belongs to the lines after it",
    "sudo": "changes the machine",
    "podman": "needs a registry; tests/deploy/test_image.py checks the Dockerfile",
    "docker": "needs a registry; tests/deploy/test_compose.py checks the file",
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
        """What it runs first, without variables before it."""
        words = [word for word in self.text.split() if not re.match(r"[A-Z_]+=", word)]
        return words[0] if words else ""

    @property
    def kvproxy(self) -> list[list[str]]:
        """The arguments of each call of kvproxy in it."""
        return [list(call) for call in calls(self.text)]


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
