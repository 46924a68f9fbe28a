"""What a page says that a command prints is what it prints."""

import re
import shlex
from pathlib import Path

import pytest

from tests.commands.run import kvproxy

ROOT = Path(__file__).resolve().parents[2]
_BLOCKS = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(page: str) -> list[tuple[str, str]]:
    """Commands of a page, and what it says that they print."""
    found = []
    for block in _BLOCKS.findall((ROOT / page).read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


@pytest.mark.parametrize(("command", "printed"), commands("docs/logs.md"))
def test_what_is_shown_is_what_is_printed(
    command: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, *arguments = shlex.split(command)
    assert kvproxy(*arguments, "--data", tmp_path).stdout == printed
