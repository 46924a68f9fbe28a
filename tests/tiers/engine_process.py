"""Runs an engine: `python -m tests.tiers.engine_process FOLDER SIZE`.

It first serves requests while its files in FOLDER/small may not exceed SIZE bytes, and prints the number of errors. Then it
serves requests without a limit in FOLDER/whole, until it is killed.
"""

import random
import resource
import sys
from pathlib import Path

from tests.engine.models import VOCABULARY
from tests.engine.tiered import Driven, tiny


def prompt_of(number: int) -> list[int]:
    """Return a prompt that shares its prefix with earlier ones."""
    chance = random.Random(number % 5)
    return [chance.randrange(VOCABULARY) for _ in range(40 + number % 40)]


def answer(driven: Driven, count: int) -> None:
    for number in range(count):
        driven.submit(str(number), prompt_of(number), 4)
        driven.run()
        print(number, flush=True)


def main(folder: Path, size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    limited = Driven(tiny(), {"disk": folder / "small"})
    answer(limited, 12)
    limited.settle()
    print("errors", limited.tiers.chain.stats()[0].errors, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    answer(Driven(tiny(), {"disk": folder / "whole"}), 10_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
