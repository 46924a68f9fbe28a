"""The table of llama.cpp's slots and saved prefixes."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvproxy.commands.tables import digest, print_table, text


def slot_rows(blocks: Sequence[Mapping[str, Any]], chains: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Return medium, state, tokens, hash, engine and first text of each slot and file.

    Mirrored blocks of other engines have neither an id nor the medium `disk`, and are left out.
    """
    begins = {chain["leaf"]: repr(chain["first_text"]) for chain in chains}
    return [
        (
            block["medium"],
            block["state"],
            block["num_tokens"],
            block["hash"],
            block["engine"],
            begins.get(block["hash"]),
        )
        for block in blocks
        if block["id"] is not None or block["medium"] == "disk"
    ]


def print_slots(blocks: list[dict[str, Any]], chains: list[dict[str, Any]]) -> None:
    """Print slots and files, with their engine if there are several."""
    rows = slot_rows(blocks, chains)
    has_engines = len({engine for *_, engine, _ in rows}) > 1
    columns = ("Medium", "State", "Tokens#", digest("Hash"), *(("Engine",) if has_engines else ()), text("Text"))
    print_table(columns, rows if has_engines else ((*row[:4], row[5]) for row in rows), empty="there is no slot")
