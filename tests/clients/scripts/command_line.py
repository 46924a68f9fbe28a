"""Runs a script of an SDK from the command line."""

import sys
from collections.abc import Callable, Iterator

Steps = Callable[[str, str], Iterator[tuple[str, object]]]
"""Takes the URL of the server and the path of the note; yields the name and the result of each step."""


def print_steps(run: Steps) -> None:
    for name, result in run(*sys.argv[1:3]):
        print(f"{name}: {result}", flush=True)
