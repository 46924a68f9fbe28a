"""kvproxy blocks ls, queue"""

from typing import Annotated, Any, Literal

import typer

from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_json
from kvproxy.commands.tables import Column, Columns, Layout, Wide, digest, print_table, text
from kvproxy.proxy_client.client import ProxyClient

State = Literal["free", "cached", "used", "pinned"]
_COLUMNS: tuple[Column | str, ...] = (
    "Block#", "State", "References#", digest("Hash"), digest("Parent", optional=True), "Group#?", "Last use#?",
    text("Requests"),
)  # fmt: skip
_MIRRORED_COLUMNS: tuple[Column | str, ...] = (
    digest("Hash"), digest("Parent", optional=True), "Tokens#", "Copies#", "Groups?", "Rank#?", "Medium?", text("Engine"),
)  # fmt: skip


def ls(
    url: Url = DEFAULT_URL,
    token: Token = None,
    state: Annotated[State | None, typer.Option(help="Only blocks in this state.")] = None,
    wide: Wide = False,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """List blocks by id.

    Example: kvproxy blocks ls --state cached
    """
    blocks = ProxyClient(url, token).get("/admin/blocks")
    chosen = [block for block in blocks if state is None or block["state"] == state]
    _print_blocks(chosen, as_json, "no block" if state is None else f"no block is {state}", Layout(wide, columns))


def queue(
    url: Url = DEFAULT_URL,
    token: Token = None,
    wide: Wide = False,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """List unreferenced blocks in eviction order.

    Example: kvproxy blocks queue | head
    """
    _print_blocks(
        ProxyClient(url, token).get("/admin/blocks/queue"), as_json, "all blocks are in use", Layout(wide, columns)
    )


def _print_blocks(blocks: list[dict[str, Any]], as_json: bool, empty: str, layout: Layout) -> None:
    if as_json:
        print_json(blocks)
    elif blocks and blocks[0].get("copies") is not None:
        print_table(_MIRRORED_COLUMNS, map(_mirrored_row, blocks), layout=layout)
    else:
        print_table(_COLUMNS, map(_row, blocks), empty=empty, layout=layout)


def _row(block: dict[str, Any]) -> tuple[object, ...]:
    requests = ", ".join(block["requests"]) or None
    return (str(block["id"]), block["state"], block["ref_count"], block["hash"], block["parent"], block["group"],
            block["last_accessed"], requests)  # fmt: skip


def _mirrored_row(block: dict[str, Any]) -> tuple[object, ...]:
    groups = ", ".join(map(str, block["groups"])) or None
    return (block["hash"], block["parent"], block["num_tokens"], block["copies"], groups, block["rank"], block["medium"],
            block["engine"])  # fmt: skip
