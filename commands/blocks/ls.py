"""`kvproxy blocks ls`, `queue`, `show`, `chains`, and `stats`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from typer import Option

from kvproxy.commands.blocks.engine_lines import away_lines, engine_line, eviction_lines, layer_group_lines
from kvproxy.commands.formatting import quoted
from kvproxy.commands.options import LimitOrAll, ProxyOptions
from kvproxy.commands.output import Output, print_facts, print_text
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.statistics_text import label_statistics
from kvproxy.commands.tables import (
    ListLayout,
    Row,
    default_limit,
    digest_column,
    number_column,
    table_output,
    text_column,
)
from kvproxy.operations.blocks_parameters import BlockName
from kvproxy.operations.operation import NoParameters

if TYPE_CHECKING:
    from kvproxy.backends.reports import PrefixCacheStats
    from kvproxy.operations.blocks import ListedBlock

_Blocks: TypeAlias = Annotated[ListLayout, RowFields("kvproxy.operations.blocks:list_blocks")]
State = Literal["free", "cached", "used", "pinned"]


def ls(
    *,
    proxy: ProxyOptions,
    state: Annotated[State | None, Option(help="Only blocks in this state.")] = None,
    limit: LimitOrAll = None,
    layout: _Blocks,
) -> Output:
    """List blocks in the order of their ids.

    Example: kvproxy blocks ls --state cached
    """
    from kvproxy.operations.blocks import list_blocks

    listed = proxy.client().perform(list_blocks, NoParameters())
    blocks = [block for block in listed if state is None or block.state == state]
    return _block_table(blocks, limit, "no block" if state is None else f"no block is {state}", layout)


def queue(*, limit: LimitOrAll = None, layout: _Blocks, proxy: ProxyOptions) -> Output:
    """List unreferenced blocks in eviction order.

    `Last operation` is the value of the pool's operation counter at the last use of the block.

    Example: kvproxy blocks queue --limit 5
    """
    from kvproxy.operations.blocks import list_block_queue

    queue = proxy.client().perform(list_block_queue, NoParameters())
    return _block_table(queue, limit, "all blocks are in use", layout)


def show(name: BlockName, proxy: ProxyOptions) -> Output:
    """Show a block with its tokens and their text.

    Example: kvproxy blocks show 1
    """
    from kvproxy.operations.blocks import show_block

    block = proxy.client().perform(show_block, name)
    facts = [(field, quoted(value) if field == "text" else value) for field, value in asdict(block).items()]
    return Output(block, lambda: print_facts(facts))


def chains(
    *,
    limit: LimitOrAll = None,
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.blocks:list_chains")],
    proxy: ProxyOptions,
) -> Output:
    """List cached prefixes, most recently used first.

    A chain is the sequence of blocks of a prefix.

    Example: kvproxy blocks chains
    """
    from kvproxy.operations.blocks import list_chains

    chains = proxy.client().perform(list_chains, NoParameters())
    shown = chains[: default_limit(limit, 100) or None]
    rows: list[Row] = [
        {
            digest_column("Leaf"): chain.leaf,
            number_column("Blocks", "num_blocks"): chain.num_blocks,
            number_column("Tokens", "num_tokens"): chain.num_tokens,
            "In use#": chain.in_use,
            text_column("Text", field="first_text"): quoted(chain.first_text),
        }
        for chain in shown
    ]
    return table_output(shown, rows, empty="no cached prefix", layout=layout, total=len(chains))


def stats(proxy: ProxyOptions) -> Output:
    """Print statistics of the prefix cache.

    Example: kvproxy blocks stats --json
    """
    from kvproxy.operations.blocks import block_statistics

    statistics = proxy.client().perform(block_statistics, NoParameters())
    return Output(statistics, lambda: _print_statistics(statistics))


def _print_statistics(statistics: "PrefixCacheStats") -> None:
    shown = asdict(statistics)
    del shown["away"]
    if statistics.tier_hits is not None:
        shown["reuse_rate"] = statistics.reuse_rate
    if statistics.residency is None or not statistics.residency.evicted:
        del shown["residency"]
    print_facts(label_statistics(shown, "blocks"))
    lines = [*map(engine_line, statistics.reported), *layer_group_lines(statistics.groups)]
    for line in [*away_lines(statistics), *lines, *eviction_lines(statistics)]:
        print_text(line)


def _block_table(listed: "Sequence[ListedBlock]", limit: int | None, empty: str, layout: ListLayout) -> Output:
    blocks = listed[: default_limit(limit, 100) or None]
    is_mirrored = bool(blocks) and blocks[0].copies is not None
    rows = map(_mirrored_row if is_mirrored else _block_row, blocks)
    return table_output(blocks, rows, empty=empty, layout=layout, total=len(listed))


def _block_row(block: "ListedBlock") -> Row:
    return {
        number_column("Block", "id"): str(block.id),
        "State": block.state,
        number_column("References", "ref_count"): block.ref_count,
        digest_column("Hash"): block.hash,
        digest_column("Parent", optional=True): block.parent,
        "Group#?": block.group,
        number_column("Last operation", "last_accessed", optional=True): block.last_accessed or None,
        text_column("Requests"): ", ".join(block.requests or ()) or None,
    }


def _mirrored_row(block: "ListedBlock") -> Row:
    return {
        digest_column("Hash"): block.hash,
        digest_column("Parent", optional=True): block.parent,
        number_column("Tokens", "num_tokens"): block.num_tokens,
        "Copies#": block.copies,
        "Groups?": ", ".join(map(str, block.groups)) or None,
        "Rank#?": block.rank,
        "Medium?": block.medium,
        text_column("Engine"): block.engine,
    }
