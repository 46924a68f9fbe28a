"""`kvproxy largest` lists the largest stored responses of a data folder. Parameters become options, and `--json` works."""

from pathlib import Path
from typing import Annotated

from typer import Option

from kvproxy.commands.output import Output, print_text


def largest(
    *,
    data: Annotated[Path, Option(help="Data folder.")],
    number: Annotated[int, Option("-n", help="Number of responses.")] = 10,
) -> Output:
    """List the largest stored responses.

    Example: kvproxy largest --data ~/.local/share/kvproxy
    """
    # Heavy modules are imported here, so that --help stays fast.
    from kvproxy.index.store import open_store

    store = open_store(data / "responses.db")
    try:
        entries = sorted(store.list_entries(limit=10_000), key=lambda entry: -len(entry.response))[:number]
    finally:
        store.close()
    rows = [{"id": entry.id, "prompt": entry.prompt, "bytes": len(entry.response)} for entry in entries]

    def show() -> None:
        for row in rows:
            print_text(f"{row['bytes']:>9,}  {row['prompt']}")

    return Output(rows, show)
