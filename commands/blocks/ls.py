"""`kvproxy blocks ls`, `queue`, `show`, `chains`, and `stats`."""

from typing import Annotated, Any, Literal

from typer import Argument, Option

from kvproxy.commands.blocks.engine_lines import engine_line, layer_group_lines
from kvproxy.commands.options import LimitOrAll, ProxyOptions
from kvproxy.commands.output import Output, print_facts, print_text
from kvproxy.commands.statistics_text import label_statistics
from kvproxy.commands.tables import ListLayout, Row, default_limit, digest_column, table_output, text_column
from kvproxy.errors import NotFound
from kvproxy.operations.client import quote_path_segment

State = Literal["free", "cached", "used", "pinned"]


def ls(
    *,
    proxy: ProxyOptions,
    state: Annotated[State | None, Option(help="Only blocks in this state.")] = None,
    limit: LimitOrAll = None,
    layout: ListLayout,
) -> Output:
    """List blocks in the order of their ids.

    Example: kvproxy blocks ls --state cached
    """
    blocks = [block for block in proxy.client().get("/admin/blocks") if state is None or block["state"] == state]
    return _block_table(blocks, limit, "no block" if state is None else f"no block is {state}", layout)


def queue(*, limit: LimitOrAll = None, layout: ListLayout, proxy: ProxyOptions) -> Output:
    """List unreferenced blocks in eviction order.

    `Last operation` is the value of the pool's operation counter at the last use of the block.

    Example: kvproxy blocks queue --limit 5
    """
    return _block_table(proxy.client().get("/admin/blocks/queue"), limit, "all blocks are in use", layout)


def show(
    id: Annotated[str, Argument(help="Number of a block, or the first digits of its hash.")], proxy: ProxyOptions
) -> Output:
    """Show a block with its tokens and their text.

    Example: kvproxy blocks show 1
    """
    block = proxy.client().get(f"/admin/blocks/{quote_path_segment(id)}")
    if not isinstance(block, dict) or "tokens" not in block:
        # The id is another route, such as stats.
        raise NotFound(f"no block {id!r}: list them with kvproxy blocks ls")
    shown = ((name, repr(value) if name == "text" else value) for name, value in block.items())
    return Output(block, lambda: print_facts(shown))


def chains(*, limit: LimitOrAll = None, layout: ListLayout, proxy: ProxyOptions) -> Output:
    """List cached prefixes, most recently used first.

    A chain is the sequence of blocks of a prefix.

    Example: kvproxy blocks chains
    """
    found = proxy.client().get("/admin/blocks/chains")
    shown = found[: default_limit(limit, 100) or None]
    rows: list[Row] = [
        {
            digest_column("Leaf"): chain["leaf"],
            "Blocks#": chain["num_blocks"],
            "Tokens#": chain["num_tokens"],
            "In use#": chain["in_use"],
            text_column("Text"): repr(chain["first_text"]),
        }
        for chain in shown
    ]
    return table_output(shown, rows, empty="no cached prefix", layout=layout, total=len(found))


def stats(proxy: ProxyOptions) -> Output:
    """Print statistics of the prefix cache.

    Example: kvproxy blocks stats --json
    """
    found = proxy.client().get("/admin/blocks/stats")
    return Output(found, lambda: _print_stats(found))


def _print_stats(found: dict[str, Any]) -> None:
    shown = {name: value for name, value in found.items() if value is not None}
    if not shown.get("residency", {}).get("evicted"):
        shown.pop("residency", None)
    print_facts(label_statistics(shown, "blocks"))
    for line in [*map(engine_line, found["reported"]), *layer_group_lines(found["groups"])]:
        print_text(line)


def _block_table(found: list[dict[str, Any]], limit: int | None, empty: str, layout: ListLayout) -> Output:
    blocks = found[: default_limit(limit, 100) or None]
    is_mirrored = bool(blocks) and blocks[0].get("copies") is not None
    rows = map(_mirrored_row if is_mirrored else _block_row, blocks)
    return table_output(blocks, rows, empty=empty, layout=layout, total=len(found))


def _block_row(block: dict[str, Any]) -> Row:
    return {
        "Block#": str(block["id"]),
        "State": block["state"],
        "References#": block["ref_count"],
        digest_column("Hash"): block["hash"],
        digest_column("Parent", optional=True): block["parent"],
        "Group#?": block["group"],
        "Last operation#?": block["last_accessed"] or None,
        text_column("Requests"): ", ".join(block["requests"]) or None,
    }


def _mirrored_row(block: dict[str, Any]) -> Row:
    return {
        digest_column("Hash"): block["hash"],
        digest_column("Parent", optional=True): block["parent"],
        "Tokens#": block["num_tokens"],
        "Copies#": block["copies"],
        "Groups?": ", ".join(map(str, block["groups"])) or None,
        "Rank#?": block["rank"],
        "Medium?": block["medium"],
        text_column("Engine"): block["engine"],
    }
