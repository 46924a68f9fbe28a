"""Writes the lock files for `pip install --require-hashes`: one version of each package, with the SHA-256 of all its files.

They are valid for every Python from 3.11 on and every platform, by markers. `requirements.lock` has the packages of a proxy, and
`requirements-engine.lock` those that the embedded engine adds, torch with its CUDA libraries among them.

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
"""Extras that the lock of the proxy contains."""
ENGINE_EXTRAS = ("engine", "embedders")
LOCK, ENGINE = ROOT / "requirements.lock", ROOT / "requirements-engine.lock"
_BEGIN = re.compile(r"^[a-z0-9]", re.M)


@dataclass(frozen=True, slots=True)
class Locked:
    """A package as a lock file holds it; `text` is its whole paragraph."""

    name: str
    version: str
    hashes: tuple[str, ...]
    text: str


def made_from(names: Iterable[str]) -> str:
    """Return the digest of a lock's inputs: a lock with another digest is out of date."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [project["requires-python"], *project["dependencies"]]
    wanted += [line for extra in (*EXTRAS, *ENGINE_EXTRAS) for line in project["optional-dependencies"][extra]]
    # Packages that only the tests need may change without a new lock.
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


def _compile(uv: str, extras: Iterable[str]) -> list[Locked]:
    with tempfile.NamedTemporaryFile("r", suffix=".lock") as out:
        chosen = [part for extra in extras for part in ("--extra", extra)]
        options = ["--universal", "--generate-hashes", "--python-version", "3.11", "--no-header", "--no-annotate"]
        command = [uv, "pip", "compile", "pyproject.toml", "--constraint", "constraints.txt"]
        subprocess.run([*command, *options, *chosen, "--quiet", "-o", out.name], cwd=ROOT, check=True)
        return paragraphs(Path(out.name).read_text())


def main() -> None:
    proxy = {each.name for each in _compile(sys.argv[1], EXTRAS)}
    found = _compile(sys.argv[1], (*EXTRAS, *ENGINE_EXTRAS))
    for path, is_engine in ((LOCK, False), (ENGINE, True)):
        chosen = [each.text.rstrip() for each in found if (each.name not in proxy) == is_engine]
        path.write_text(
            f"# Made by `make lock` from {made_from(each.name for each in found)}\n" + "\n".join(chosen) + "\n"
        )
        print(f"{path.name}: {len(chosen)} packages")


if __name__ == "__main__":
    main()
