"""Entry point of `kvproxy` and of `python -m kvproxy`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C exits with code 130, even during the imports."""
    try:
        from kvproxy.commands import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
