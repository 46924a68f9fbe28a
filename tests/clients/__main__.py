"""Installs clients, runs a task with each, and prints a table: `python -m tests.clients FOLDER [NAME ...]`.

The exit status is 1 if a client that could be installed fails a check, or if fewer than ten clients pass (without names).
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.clients.installed import CLIENTS, InstallationError, install
from tests.clients.matrix import CHECKS, Result, check

_ENOUGH = 10


def main(folder: str, *names: str) -> int:
    clients_folder = Path(folder).resolve()
    clients_folder.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, Result | str]] = []
    for client in CLIENTS:
        if names and not any(name.lower() in client.name.lower() for name in names):
            continue
        started = time.monotonic()
        try:
            install(client, clients_folder)
        except InstallationError as error:
            rows.append((client.name, f"not installed: {error}"))
            print(client.name, rows[-1][1], flush=True)
            continue
        with tempfile.TemporaryDirectory() as data:
            result = check(client, clients_folder, Path(data))
        rows.append((client.name, result))
        print(f"{client.name}: {time.monotonic() - started:.0f} s", flush=True)
        for name, failure in result.failures.items():
            if failure is not None:
                print(f"  {name}: {failure}", flush=True)
    _print_table(rows)
    results = [result for _, result in rows if isinstance(result, Result)]
    passed = sum(result.passed for result in results)
    print(f"{passed} of {len(rows)} clients pass all checks")
    return 0 if passed == len(results) and (names or passed >= _ENOUGH) else 1


def _print_table(rows: list[tuple[str, Result | str]]) -> None:
    width = max(len(name) for name, _ in rows)
    print(f"\n| {'client':{width}} | {' | '.join(CHECKS)} | hits of the 2nd run |")
    print(f"|{'-' * (width + 2)}|{'---|' * (len(CHECKS) + 1)}")
    for name, result in rows:
        if isinstance(result, str):
            print(f"| {name:{width}} | {result} {'|' * len(CHECKS)} |")
            continue
        cells = [
            "-" if check not in result.failures else "FAILED" if result.failures[check] else "ok" for check in CHECKS
        ]
        print(f"| {name:{width}} | {' | '.join(cells)} | {result.hits} |")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
