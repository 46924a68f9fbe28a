"""Programs that tests start. `python3 tests/programs.py` ends with an error that names the packages of missing ones.

`make test` runs it before it installs anything, so this file uses the standard library only.
"""

import argparse
import os
import shutil
import sys

# Debian's package of each program.
PACKAGES = {
    "curl": "curl",
    "redis-server": "redis-server",
    "nginx": "nginx",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
    "strace": "strace",
}
_ONLY_ON_LINUX = {"strace"}


def find(program: str) -> str | None:
    # Debian installs servers where only root's PATH looks.
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def reason(program: str) -> str:
    return f"{program} is not installed: apt-get install {PACKAGES[program]}"


def required(program: str) -> str:
    """Return the path of a program; skip the test without it."""
    import pytest

    return find(program) or pytest.skip(reason(program))


def missing_packages() -> list[str]:
    wanted = [program for program in PACKAGES if sys.platform == "linux" or program not in _ONLY_ON_LINUX]
    return [PACKAGES[program] for program in wanted if find(program) is None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the missing packages only, without an error")
    missing = missing_packages()
    if parser.parse_args().list:
        print(*missing)
    elif missing:
        sys.exit(
            f"Install what the tests start: apt-get install {' '.join(missing)}\n"
            "(Debian's names. Without them, `make lint types pytest` skips the tests that need them.)"
        )


if __name__ == "__main__":
    main()
