"""Extracts the code of docs/library.md: `python -m tests.library.page FOLDER` writes modules for mypy."""

import re
import sys
from pathlib import Path

from tests.structure.test_imports import ROOT

PAGE = ROOT / "docs/library.md"


def blocks(*kinds: str) -> list[tuple[str, str]]:
    """Return the kind and the text of each block of the page that has one of the kinds."""
    return re.findall(rf"^```({'|'.join(kinds)})\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def write_modules(folder: Path) -> None:
    """Write each block as a module."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    for number, (_, text) in enumerate(blocks("python", "py")):
        (folder / f"library_page_{number}.py").write_text(text)


if __name__ == "__main__":
    write_modules(Path(sys.argv[1]))
