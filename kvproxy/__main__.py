"""Runs `kvproxy`, and `python -m kvproxy`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with the exit code 130, also while it is being imported."""
    try:
        from kvproxy.commands import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
