"""How many small changes to the code no test notices: a mutation score, over a seeded sample.

Each change is made in a copy of the tree and put to the tests that call the changed function, up to the first that
fails. A change is `killed` by a failing test, out of `time` when a run takes far longer than without it, `unreached`
where no test calls the function, and `survived` otherwise.

    python -m tests.mutants kvproxy/blocks --each 8 --tests tests/blocks
    python -m tests.mutants index/policies/guards/question_kinds.py --seed 2 --reached reached.json --out survivors.txt
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.changes import Change, changes
from tests.mutants.reached import Reached, Recorder
from tests.mutants.runs import PAST, ROOT, Run, copied, run, warm_up

# Those that kill processes, build wheels or measure are left out: they take long, and call little in their own process.
_ROOMS = "apis backends blocks commands engine flow http index journal mirror routing settings simulate tiers traffic"
TESTS = [f"tests/{room}" for room in _ROOMS.split()]
_HOURS = 10_000.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change to a file, which is a path in the tree."""

    file: str
    change: Change


def sample(paths: list[str], each: int, seed: int) -> list[Mutant]:
    """So many changes of each module below the paths; the same ones for the same seed and text, in a random order."""
    chosen = []
    for path in paths:
        files = sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
        for file in files:
            name = str(file.relative_to(ROOT))
            if "/training/" in name:
                continue
            found = changes(file.read_text())
            picked = random.Random(f"{seed} {name}").sample(found, min(each, len(found)))
            chosen += [Mutant(name, change) for change in picked]
    # A run that is ended early has then seen of every room.
    random.Random(seed).shuffle(chosen)
    return chosen


def tried(folder: Path, mutant: Mutant, tests: list[str], seconds: float) -> Run:
    """What becomes of a mutant."""
    path = folder / mutant.file
    text = path.read_text()
    path.write_text(mutant.change.apply(text))
    try:
        return run(folder, tests, seconds)
    finally:
        path.write_text(text)
        os.utime(path, (PAST, PAST))


def record(folder: Path, tests: list[str], out: Path) -> Reached:
    """What each test calls; written to a file, unless one is there already."""
    if not out.exists():
        run(folder, tests, _HOURS, recorder=Recorder(folder, out.resolve()))
    return Reached(out, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="modules or folders")
    parser.add_argument("--each", type=int, default=8, help="changes of a module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="tests that may notice them")
    parser.add_argument("--reached", type=Path, help="file for what each test calls, written once and read again")
    parser.add_argument("--only", nargs="*", help="only changes at these places, FILE:LINE")
    parser.add_argument("--out", type=Path, help="file for the survivors")
    parser.add_argument("--longest", type=float, default=45, help="seconds of tests for a change")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further change after so many")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    warm_up()
    counts: Counter[str] = Counter()
    with copied() as folder, tempfile.TemporaryDirectory() as scratch:
        reached = record(folder, arguments.tests, arguments.reached or Path(scratch) / "reached.json")
        print(f"# {len(reached)} tests", flush=True)
        for mutant in sample(arguments.paths, arguments.each, arguments.seed):
            place = f"{mutant.file}:{mutant.change.line}"
            if time.monotonic() > end or (arguments.only and place not in arguments.only):
                continue
            text = (ROOT / mutant.file).read_text()
            tests, seconds = reached.tests_for(mutant.file, text, mutant.change.line, arguments.longest)
            came = tried(folder, mutant, tests, seconds) if tests else None
            fate = "unreached" if came is None else came.fate
            counts[fate] += 1
            told = f"{fate:10}{place}  {mutant.change.told(text)}"
            took = "" if came is None else f"  [{came.seconds:.0f} s of {seconds:.0f}, {len(tests)} tests] {came.by}"
            print(told + took, flush=True)
            if fate in ("survived", "unreached") and arguments.out is not None:
                with arguments.out.open("a") as out:
                    out.write(f"{told}\n")
    total, noticed = sum(counts.values()), counts["killed"] + counts["time"]
    print(f"{total} changes, {noticed} noticed ({noticed / max(1, total):.0%}): {dict(counts)}")
    sys.exit(0 if total else 1)


if __name__ == "__main__":
    main()
