"""Command lines of the benchmarks."""

import argparse
from pathlib import Path
from typing import Any


def read_options(description: str | None, *paths: str, **options: Any) -> argparse.Namespace:
    """Parse the command line of a benchmark.

    Args:
        description: docstring of the module.
        paths: names of required paths.
        options: default of each option. A list accepts several values; a type is the type of an option without a default.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in paths:
        parser.add_argument(name, type=Path)
    for name, default in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, type):
            parser.add_argument(flag, type=default)
        elif isinstance(default, list):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args()
