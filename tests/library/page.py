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
    """Write the blocks of the kind `python` as one module, and those of `py` as another."""
    folder.mkdir(exist_ok=True)
    for kind in ("python", "py"):
        (folder / f"{kind}_of_library_page.py").write_text("\n".join(text for _, text in blocks(kind)))


if __name__ == "__main__":
    write_modules(Path(sys.argv[1]))
