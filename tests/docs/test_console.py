"""The shown output of docs/logs.md is current."""

import re
import shlex
from pathlib import Path

import pytest

from tests.commands.run import kvproxy

ROOT = Path(__file__).resolve().parents[2]
_BLOCKS = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(page: str) -> list[tuple[str, str]]:
    """Return the commands of a page with their shown output."""
    found = []
    for block in _BLOCKS.findall((ROOT / page).read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


@pytest.mark.parametrize(("command", "printed"), commands("docs/logs.md"))
def test_the_shown_output_is_current(
    command: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, *arguments = shlex.split(command)
    assert kvproxy(*arguments, "--data", tmp_path).stdout == printed
