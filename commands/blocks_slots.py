"""The slots of llama.cpp and what is saved of them, as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvproxy.commands.tables import digest, print_table, text


def is_slot(block: Mapping[str, Any]) -> bool:
    """Whether a row is a slot or a file: a slot has a number, and a file lies on disk; a mirrored block has neither."""
    return block["id"] is not None or block["medium"] == "disk"


def slot_rows(
    blocks: Sequence[Mapping[str, Any]], chains: Sequence[Mapping[str, Any]]
) -> list[tuple[object, object, object, object, object, object]]:
    """Where each slot and each file lies, its state, tokens, hash and engine, and the text that it begins with.

    Args:
        blocks: slots and files, and blocks of other engines, which are left out.
        chains: those of them that hold something.
    """
    begins = {chain["leaf"]: repr(chain["begins"]) for chain in chains}
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
        if is_slot(block)
    ]


def print_slots(blocks: list[dict[str, Any]], chains: list[dict[str, Any]]) -> None:
    """Print a row for each slot and each file, with its engine where there are several; see `slot_rows`."""
    rows = slot_rows(blocks, chains)
    several = len({engine for *_, engine, _ in rows}) > 1
    columns = ("in", "state", "tokens#", digest("hash"), *(("engine",) if several else ()), text("begins"))
    print_table(columns, rows if several else ((*row[:4], row[5]) for row in rows), empty="there is no slot")
