"""How many small changes to the code no test notices: a mutation score, over a seeded sample.

Each change is made in a copy of the tree and put to the tests of its room, up to the first that fails. A change is
`killed` by a failing test or by a run that takes far longer than without it, and `survived` otherwise.

    python -m tests.mutants kvproxy/blocks --each 8
    python -m tests.mutants index/guards/asking.py --seed 2 --out survivors.txt
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mutants.changes import Change, changes
from tests.mutants.rooms import chosen_tests

ROOT = Path(__file__).resolve().parents[2]
_PAST = 1_500_000_000  # When no file was changed, so that a compiled file is never taken for a changed one.
Fate = Literal["killed", "survived", "time"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change to a file, which is a path in the tree."""

    file: str
    change: Change


def sample(paths: list[str], each: int, seed: int) -> list[Mutant]:
    """So many changes of each module below the paths; the same ones for the same seed and text."""
    chosen = []
    for path in paths:
        files = sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
        for file in files:
            name = str(file.relative_to(ROOT))
            if "/training/" in name:
                continue
            found = changes(file.read_text())
            picked = random.Random(f"{seed} {name}").sample(found, min(each, len(found)))
            chosen += [Mutant(name, change) for change in sorted(picked, key=lambda change: change.start)]
    return chosen


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """The tree as git would see it, elsewhere."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in filter(None, names):
            target = Path(folder) / name
            if not (ROOT / name).exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target, follow_symlinks=False)
            if not target.is_symlink():
                os.utime(target, (_PAST, _PAST))
        yield Path(folder)


def warm_up() -> None:
    """Load what tests load of others' code, once for all runs."""
    for name in ("hypothesis", "numpy", "orjson", "pydantic_settings", "starlette", "httpx", "aiohttp"):
        with contextlib.suppress(ImportError):
            __import__(name)


def _do_not_shrink() -> None:
    """Have hypothesis stop at the first example that fails: the smallest one takes minutes, and nobody reads it."""
    from hypothesis import Phase, settings

    settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None, derandomize=True)
    settings.load_profile("mutants")


def run(folder: Path, tests: list[str], limit: float) -> tuple[Fate, float]:
    """What the tests say of the tree in a folder, and how many seconds it took; they run in a process of their own."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(folder)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        for name in [name for name in sys.modules if name.split(".")[0] in ("kvproxy", "tests")]:
            del sys.modules[name]
        sys.path[:] = [str(folder), *(path for path in sys.path if path not in ("", str(ROOT)))]
        import pytest

        _do_not_shrink()
        # What is warmed up has no assertions of ours.
        options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code: int = pytest.main([*options, *tests])
        os._exit(code)
    while time.monotonic() - began < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            return ("survived" if status == 0 else "killed"), time.monotonic() - began
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "time", time.monotonic() - began


def tried(folder: Path, mutant: Mutant, tests: list[str], limit: float) -> Fate:
    """What becomes of a mutant."""
    path = folder / mutant.file
    text = path.read_text()
    path.write_text(mutant.change.apply(text))
    try:
        return run(folder, tests, limit)[0]
    finally:
        path.write_text(text)
        os.utime(path, (_PAST, _PAST))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="modules or folders")
    parser.add_argument("--each", type=int, default=8, help="changes of a module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for the survivors")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further change after so many")
    arguments = parser.parse_args()
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    end = time.monotonic() + arguments.seconds
    warm_up()
    counts = {"killed": 0, "survived": 0, "time": 0}
    limits: dict[frozenset[str], float] = {}
    with copied() as folder:
        for mutant in sample(arguments.paths, arguments.each, arguments.seed):
            tests = chosen_tests(mutant.file)
            if time.monotonic() > end:
                break
            if frozenset(tests) not in limits:
                fate, seconds = run(folder, tests, 1800)
                if fate != "survived":
                    sys.exit(f"the tests fail without any change: {' '.join(tests)}")
                limits[frozenset(tests)] = 2 * seconds + 10
                print(f"# {seconds:.0f} s: {' '.join(tests)}", flush=True)
            fate = tried(folder, mutant, tests, limits[frozenset(tests)])
            counts[fate] += 1
            told = f"{fate:9}{mutant.file}:{mutant.change.line}  {mutant.change.told((ROOT / mutant.file).read_text())}"
            print(told, flush=True)
            if fate == "survived" and arguments.out is not None:
                with arguments.out.open("a") as out:
                    out.write(f"{told}\n")
    total = sum(counts.values())
    print(
        f"{total} changes, {total - counts['survived']} noticed ({(total - counts['survived']) / max(1, total):.0%}): {counts}"
    )


if __name__ == "__main__":
    main()
