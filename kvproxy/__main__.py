"""Runs the command `kvproxy`: `python -m kvproxy`."""

import atexit
import gc
import sys

_GC_THRESHOLD = 10_000
"""Allocations between garbage collections. Python's default, 700, causes a hundred collections during the imports."""


def main() -> None:
    gc.set_threshold(_GC_THRESHOLD)
    # The interpreter's last collection would visit all objects of the imported modules, which takes 0.05 s.
    atexit.register(gc.freeze)
    try:
        from kvproxy.commands import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
