"""`kvproxy blocks picture`: the block pool as a drawing."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from kvproxy.commands.blocks.engine_lines import away_lines, engine_line, layer_group_lines, prefix_hits, tier_line
from kvproxy.commands.formatting import quoted
from kvproxy.commands.options import ProxyOptions
from kvproxy.commands.output import Output, print_text
from kvproxy.commands.tables import Row, digest_column, print_table, text_column
from kvproxy.operations.operation import NoParameters
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.backends.reports import PrefixCacheStats
    from kvproxy.operations.blocks import ListedBlock, ListedChain

SHAPES = {"free": "·", "cached": "▒", "used": "█", "pinned": "▓", "null": "0"}
_COLOURS = {"free": "bright_black", "cached": "cyan", "used": "green", "pinned": "yellow", "null": "bright_black"}
_PRECEDENCE = ("used", "pinned", "cached", "free")
_ROWS = 16
_MIN_WIDTH, _MAX_WIDTH = 20, 100


def picture(proxy: ProxyOptions) -> Output:
    """Draw the block pool: free, cached and used blocks.

    In front of llama.cpp, list its slots and saved prefixes.

    Example: kvproxy blocks
    """
    from kvproxy.operations.blocks import block_statistics, list_blocks, list_chains, list_tiers

    client = proxy.client()
    blocks, stats = client.perform(list_blocks, NoParameters()), client.perform(block_statistics, NoParameters())
    states = [block.state for block in blocks]

    def show() -> None:
        if not stats.engines:
            _draw_pool(states, stats)
            for tier in client.perform(list_tiers, NoParameters()):
                print_text(f" tier {tier_line(tier)}")
            return
        for line in away_lines(stats):
            print_text(line)
        if not stats.slots or stats.complete is not None:
            print_mirrors(stats)
        if stats.slots:
            _print_slots(blocks, client.perform(list_chains, NoParameters()))

    return Output({"stats": stats, "states": states}, show)


def print_mirrors(stats: "PrefixCacheStats") -> None:
    if stats.cached is not None:
        print_text(
            f"{stats.cached:,} cached blocks ({stats.distinct:,} distinct) of {stats.block_size or '?'} tokens,"
            f" {stats.evictions:,} evictions, from KV events"
        )
    for engine in stats.reported:
        print_text(f"  {engine_line(engine)}")
    for stream in stats.streams:
        batches = f"{stream.endpoint}, {stream.batches:,} batches"
        if not stream.connected:
            print_text(f"  not connected to {batches}")
        else:
            events = "complete" if stream.complete else "incomplete: earlier events were lost"
            print_text(f"  following {batches}, {events}")


def _print_slots(blocks: "Sequence[ListedBlock]", chains: "Sequence[ListedChain]") -> None:
    begins = {chain.leaf: quoted(chain.first_text) for chain in chains}
    # Mirrored blocks of other engines have neither an id nor the medium `disk`.
    slots = [block for block in blocks if block.id is not None or block.medium == "disk"]
    has_engines = len({slot.engine for slot in slots}) > 1
    rows: list[Row] = [
        {
            "Medium": slot.medium,
            "State": slot.state,
            "Tokens#": slot.num_tokens,
            digest_column("Hash"): slot.hash,
            **({"Engine": slot.engine} if has_engines else {}),
            text_column("Text"): begins.get(slot.hash),
        }
        for slot in slots
    ]
    print_table(rows, empty="there is no slot")


def _draw_pool(states: Sequence[str], stats: "PrefixCacheStats") -> None:
    console = Console()
    width = max(_MIN_WIDTH, min(console.width, _MAX_WIDTH) - 2)
    blocks_per_cell = -(-len(states) // (width * _ROWS))
    runs = (states[start : start + blocks_per_cell] for start in range(0, len(states), blocks_per_cell))
    cells = [next((state for state in _PRECEDENCE if state in run), "null") for run in runs]
    for start in range(0, len(cells), width):
        line = Text(" ")
        for state in cells[start : start + width]:
            line.append(SHAPES[state], _COLOURS[state])
        console.print(line, soft_wrap=True)
    console.print(_legend_text(stats, blocks_per_cell), soft_wrap=True)
    print_text(f" hit rate {prefix_hits(stats)}, {stats.evictions:,} evictions, {stats.block_size} tokens per block")
    for group in layer_group_lines(stats.groups):
        print_text(f" {group}")


def _legend_text(stats: "PrefixCacheStats", blocks_per_cell: int) -> Text:
    legend = Text(" ")
    counts = asdict(stats)
    for state in _PRECEDENCE if stats.pinned else ("used", "cached", "free"):
        legend.append(f"{SHAPES[state]} {state} ", _COLOURS[state])
        legend.append(f"{counts[state]:,}   ")
    return legend.append(f"({plural(blocks_per_cell, 'block')} per cell)", "bright_black")
