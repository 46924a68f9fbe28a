"""kvproxy blocks: look into the prefix cache of a running proxy."""

from typing import Annotated, Any

import typer

from kvproxy.commands.blocks_tiers import tier_line
from kvproxy.commands.client import ProxyClient
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import percent, print_facts, print_json, print_table

app = typer.Typer(help="The prefix cache: its blocks, their order of eviction, the chains they form.")

_SHAPES = {"free": "·", "cached": "▒", "used": "█", "pinned": "▓", "null": "0"}
_COLOURS = {"free": "bright_black", "cached": "cyan", "used": "green", "pinned": "yellow", "null": "bright_black"}
_ROWS = 16


@app.callback(invoke_without_command=True)
def picture(context: typer.Context, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Draw the pool: free, cached and used blocks.

    Example: kvproxy blocks
    """
    if context.invoked_subcommand is not None:
        return
    client = ProxyClient(url, token)
    blocks, stats = client.get("/admin/blocks"), client.get("/admin/blocks/stats")
    if as_json:
        print_json({"stats": stats, "states": [block["state"] for block in blocks]})
        return
    if stats["num_blocks"] is None:
        _mirrored(stats)
    else:
        _draw([block["state"] for block in blocks], stats)
        for tier in client.get("/admin/blocks/tiers"):
            typer.echo(f" beyond the pool, {tier_line(tier)}")


def _mirrored(stats: dict[str, Any]) -> None:
    """What is known of an upstream's pool: neither its size nor what is in use is published."""
    typer.echo(
        f"{stats['cached']:,} cached blocks ({stats['distinct']:,} distinct) of {stats['block_size'] or '?'} tokens,"
        f" {stats['evictions']:,} evictions, as the upstream published them"
    )
    for stream in stats["streams"]:
        known = "complete" if stream["complete"] else "incomplete: events from before were lost"
        state = "following" if stream["connected"] else "not connected to"
        typer.echo(f"  {state} {stream['endpoint']}, {stream['batches']:,} batches, {known}")


def _draw(states: list[str], stats: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    width = max(20, min(console.width, 100) - 2)
    # One cell is one block while they fit, else a run of blocks that shows its busiest state.
    per_cell = -(-len(states) // (width * _ROWS))
    cells = [_busiest(states[start : start + per_cell]) for start in range(0, len(states), per_cell)]
    for start in range(0, len(cells), width):
        line = Text(" ")
        for state in cells[start : start + width]:
            line.append(_SHAPES[state], _COLOURS[state])
        console.print(line)
    legend = Text(" ")
    counts = stats | {"free": stats["free"] - stats["cached"], "used": stats["used"] - stats["pinned"]}
    for state in ("used", "pinned", "cached", "free") if stats["pinned"] else ("used", "cached", "free"):
        legend.append(f"{_SHAPES[state]} {state} ", _COLOURS[state])
        count = counts[state]
        legend.append(f"{count:,}   ")
    legend.append(f"({'one block a cell' if per_cell == 1 else f'{per_cell} blocks a cell'})", "bright_black")
    console.print(legend)
    console.print(
        f" hit rate {percent(stats['hit_rate'])} ({stats['hits']:,} of {stats['queries']:,} prompt tokens),"
        f" {stats['evictions']:,} evictions, {stats['block_size']} tokens a block",
        highlight=False,
    )


def _busiest(states: list[str]) -> str:
    return next((state for state in ("used", "pinned", "cached", "free") if state in states), "null")


@app.command("ls")
def ls(
    url: Url = DEFAULT_URL,
    token: Token = None,
    state: Annotated[
        str | None, typer.Option(help="Only free, cached, used or pinned ones.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List blocks in id order.

    Example: kvproxy blocks ls --state cached
    """
    blocks = ProxyClient(url, token).get("/admin/blocks")
    chosen = [block for block in blocks if state is None or block["state"] == state]
    if chosen and "copies" in chosen[0] and not as_json:
        columns = ("hash", "parent", "tokens#", "copies#", "rank#", "medium", "engine")
        rows = (
            [(block[name.rstrip("#")] if name != "tokens#" else block["num_tokens"]) for name in columns]
            for block in chosen
        )
        print_table(columns, rows)
        return
    _print_blocks(chosen, as_json)


@app.command("queue")
def queue(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List idle blocks, the next to be evicted first.

    Example: kvproxy blocks queue | head
    """
    _print_blocks(ProxyClient(url, token).get("/admin/blocks/queue"), as_json)


def _print_blocks(blocks: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(blocks)
        return
    print_table(
        ("block#", "state", "refs#", "hash", "parent", "last used#", "requests"),
        (
            (
                str(block["id"]),
                block["state"],
                block["ref_count"],
                (block["hash"] or "")[:12],
                (block["parent"] or "")[:12],
                block["last_accessed"],
                ", ".join(block["requests"]),
            )
            for block in blocks
        ),
    )


@app.command("show")
def show(
    id: Annotated[str, typer.Argument(help="The block's number, or the beginning of a mirrored block's hash.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show one block with its tokens and text.

    Example: kvproxy blocks show 1
    """
    block = ProxyClient(url, token).get(f"/admin/blocks/{id}")
    if as_json:
        print_json(block)
    else:
        print_facts((name, repr(value) if name == "text" else value) for name, value in block.items())


@app.command("chains")
def chains(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List cached chains, the most recently used first.

    Example: kvproxy blocks chains
    """
    found = ProxyClient(url, token).get("/admin/blocks/chains")
    if as_json:
        print_json(found)
        return
    print_table(
        ("leaf", "blocks#", "tokens#", "in use#", "begins"),
        (
            (
                chain["leaf"][:12],
                chain["num_blocks"],
                chain["num_tokens"],
                chain["in_use"],
                repr(chain["begins"][:44]),
            )
            for chain in found
        ),
    )


@app.command("stats")
def stats(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Print the pool's figures.

    Example: kvproxy blocks stats --json
    """
    found = ProxyClient(url, token).get("/admin/blocks/stats")
    if as_json:
        print_json(found)
    else:
        residency = found.pop("residency", None) or {}
        if residency.get("evicted"):
            found |= {f"residency {name}": value for name, value in residency.items() if value is not None}
        plain = {name: value for name, value in found.items() if not isinstance(value, list)}
        print_facts((name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in plain.items())


def _reset_sentence(done: dict[str, Any]) -> str:
    if done["reset"]:
        return "the prefix cache is empty now"
    if done["pinned"]:
        return f"refused: {done['pinned']} blocks are pinned; blocks pins lists the pins, blocks unpin takes one back"
    return "refused: a request holds blocks; try again"


@app.command("reset")
def reset(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Forget everything in the prefix cache; refused while a request is running.

    Example: kvproxy blocks reset
    """
    done = ProxyClient(url, token).post("/admin/blocks/reset")
    if as_json:
        print_json(done)
    else:
        typer.echo(_reset_sentence(done))
    if not done["reset"]:
        raise typer.Exit(1)
