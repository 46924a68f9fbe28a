"""The configuration of clients as docs/agent-clients.md shows it: files, commands, and rules."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "agent-clients.md"
URL = "http://127.0.0.1:8484"
_HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"(?:^`([^`\n]+)`[^\n]*:\n\n)?^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Section:
    """The code of a section.

    Attributes:
        files: contents by path; paths begin with `~/` or are relative to the project.
        server: commands that start kvproxy.
        commands: commands of the client.
    """

    files: Mapping[str, str]
    server: str
    commands: str

    def write_files(self, home: Path, project: Path, url: str) -> None:
        """Write the files of the client, with the URL of a running proxy."""
        for name, text in self.files.items():
            path = home / name[2:] if name.startswith("~/") else project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(URL, url))


def sections(text: str) -> Mapping[str, Section]:
    """Return the sections of the page by their headings."""
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {heading[1]: _section(text[heading.end() : end]) for heading, end in zip(headings, ends, strict=True)}


def _section(text: str) -> Section:
    blocks: Sequence[tuple[str, str, str]] = _BLOCK.findall(text)
    shell = [block for name, kind, block in blocks if kind == "sh" and not name]
    return Section(
        files={name: block for name, _, block in blocks if name},
        server="".join(block for block in shell if block.startswith("kvproxy serve")),
        commands="".join(block for block in shell if not block.startswith("kvproxy serve")),
    )
