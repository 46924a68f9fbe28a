"""Writes what `pip install --require-hashes` installs: each package in one version, with the SHA-256 of all its files.

It holds for every Python from 3.11 on and every platform, by markers. torch, and the CUDA libraries that PyPI's builds of it need
on Linux, stand in a file of their own, since a machine without a GPU takes torch from another index.

    python -m tests.supply.lock PATH-OF-UV
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("encryption", "postgres", "redis")
LOCK, TORCH = ROOT / "requirements.lock", ROOT / "requirements-torch.lock"
_OF_TORCH = re.compile(r"(torch|triton|cuda-.+|nvidia-.+)==")
_BEGIN = re.compile(r"^[a-z0-9]", re.M)


@dataclass(frozen=True, slots=True)
class Locked:
    """A package as a lock file holds it; `text` is its whole paragraph."""

    name: str
    version: str
    hashes: tuple[str, ...]
    text: str


def made_from(names: Iterable[str]) -> str:
    """Digest of what a lock of some packages is made from: a lock of another one is out of date."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [project["requires-python"], *project["dependencies"]]
    wanted += [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    # What only the tests need may change without it.
    chosen = set(names)
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    wanted += [pin for pin in pins if re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() in chosen]
    return hashlib.sha256("\n".join(wanted).encode()).hexdigest()


def paragraphs(text: str) -> list[Locked]:
    """The packages of a lock file."""
    starts = [match.start() for match in _BEGIN.finditer(text)]
    return [_read(text[start:end]) for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _read(paragraph: str) -> Locked:
    name, version = re.match(r"([a-z0-9-]+)==([^\s;]+)", paragraph).groups()  # type: ignore[union-attr]
    return Locked(name, version, tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", paragraph)), paragraph)


def main() -> None:
    with tempfile.NamedTemporaryFile("r", suffix=".lock") as out:
        extras = [part for extra in EXTRAS for part in ("--extra", extra)]
        options = ["--universal", "--generate-hashes", "--python-version", "3.11", "--no-header", "--no-annotate"]
        command = [sys.argv[1], "pip", "compile", "pyproject.toml", "--constraint", "constraints.txt"]
        subprocess.run([*command, *options, *extras, "--quiet", "-o", out.name], cwd=ROOT, check=True)
        found = paragraphs(Path(out.name).read_text())
    for path, torch in ((LOCK, False), (TORCH, True)):
        chosen = [each.text.rstrip() for each in found if bool(_OF_TORCH.match(each.text)) == torch]
        path.write_text(
            f"# Made by `make lock` from {made_from(each.name for each in found)}\n" + "\n".join(chosen) + "\n"
        )
        print(f"{path.name}: {len(chosen)} packages")


if __name__ == "__main__":
    main()
