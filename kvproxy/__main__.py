"""Runs the command `kvproxy`: `python -m kvproxy`."""

import sys


def main() -> None:
    try:
        from kvproxy.commands import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
