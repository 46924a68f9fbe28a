"""The slots of llama.cpp and what is saved of them, as a table."""

from collections.abc import Mapping
from typing import Any

from kvproxy.commands.table import digest, print_table, text


def is_slot(block: Mapping[str, Any]) -> bool:
    """Whether a row is a slot or a file: a slot has a number, and a file lies on disk; a mirrored block has neither."""
    return block["id"] is not None or block["medium"] == "disk"


def print_slots(blocks: list[dict[str, Any]], chains: list[dict[str, Any]]) -> None:
    """Print a row for each slot and each file.

    Args:
        blocks: slots and files, and blocks of other engines, which are left out.
        chains: those of them that hold something, with the text that they begin with.
    """
    blocks = [block for block in blocks if is_slot(block)]
    begins = {chain["leaf"]: repr(chain["begins"]) for chain in chains}
    several = len({block["engine"] for block in blocks}) > 1
    columns = ("in", "state", "tokens#", digest("hash"), *(("engine",) if several else ()), text("begins"))
    rows = (
        (
            block["medium"],
            block["state"],
            block["num_tokens"],
            block["hash"],
            *((block["engine"],) if several else ()),
            begins.get(block["hash"]),
        )
        for block in blocks
    )
    print_table(columns, rows, empty="there is no slot")
