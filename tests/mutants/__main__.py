"""A mutation score: the share of small changes to the code that tests notice, over a seeded sample.

Each change is made in a copy of the tree. The tests run until the first failure.

    python -m tests.mutants kvproxy/blocks/pins.py --each 20 --tests tests/blocks/test_pins.py
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mutants.changes import Change, change, count_changes

_ROOT = Path(__file__).resolve().parents[2]
_SLOWDOWN, _MARGIN = 3, 20.0
"""A run with a change may take so many times as long as without it, and this many seconds longer."""


def sample(paths: list[str], each: int, seed: int) -> list[tuple[Path, Change]]:
    """Choose `each` changes of each module, in a random order. The same seed gives the same sample."""
    files = [file for path in map(Path, paths) for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    chosen = []
    for file in files:
        text = file.read_text()
        count = count_changes(text)
        picked = random.Random(f"{seed} {file}").sample(range(count), min(each, count))
        chosen += [(file, change(text, index)) for index in picked]
    random.Random(seed).shuffle(chosen)
    return chosen


def run_tests(folder: Path, tests: list[str], timeout: float | None = None) -> str:
    """Return how the tests end: `survived`, `killed`, or `timeout`."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return "timeout"
    return "killed" if done.returncode else "survived"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="modules or folders")
    parser.add_argument("--tests", nargs="+", required=True, help="tests that may notice the changes")
    parser.add_argument("--each", type=int, default=8, help="changes of a module")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        folder = Path(scratch) / "tree"
        shutil.copytree(_ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        started = time.monotonic()
        if run_tests(folder, arguments.tests) != "survived":
            sys.exit("the tests fail without a change")
        timeout = _SLOWDOWN * (time.monotonic() - started) + _MARGIN
        for file, made in sample(arguments.paths, arguments.each, arguments.seed):
            original = (folder / file).read_text()
            (folder / file).write_text(made.text)
            result = run_tests(folder, arguments.tests, timeout)
            (folder / file).write_text(original)
            counts[result] += 1
            print(f"{result:10}{file}:{made.line}  {made.description}", flush=True)
    noticed = counts["killed"] + counts["timeout"]
    print(f"{counts.total()} changes, {noticed} noticed ({noticed / max(1, counts.total()):.0%})")


if __name__ == "__main__":
    main()
