"""kvproxy blocks: look into the prefix cache of a running proxy."""

from typing import Annotated, Any, Literal

import typer

from kvproxy.commands.blocks_picture import draw_pool, group_lines
from kvproxy.commands.blocks_slots import print_slots
from kvproxy.commands.blocks_tiers import tier_line
from kvproxy.proxy_client.client import ProxyClient, part
from kvproxy.commands.engines import engine_line
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_facts, print_json
from kvproxy.commands.tables import Column, digest, print_table, text
from kvproxy.errors import NotFound

app = typer.Typer(help="The prefix cache: its blocks, the order in which they are evicted, the chains they form.")
State = Literal["free", "cached", "used", "pinned"]


@app.callback(invoke_without_command=True)
def picture(context: typer.Context, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Draw the pool: which blocks are free, cached and in use. In front of llama.cpp, list its slots and saved prefixes.

    Example: kvproxy blocks
    """
    if context.invoked_subcommand is not None:
        return
    client = ProxyClient(url, token)
    blocks, stats = client.get("/admin/blocks"), client.get("/admin/blocks/stats")
    if as_json:
        print_json({"stats": stats, "states": [block["state"] for block in blocks]})
        return
    if stats["engines"]:
        if not stats["slots"] or stats["complete"] is not None:
            _mirrored(stats)
        if stats["slots"]:
            print_slots(blocks, client.get("/admin/blocks/chains"))
    else:
        draw_pool([block["state"] for block in blocks], stats)
        for tier in client.get("/admin/blocks/tiers"):
            typer.echo(f" beyond the pool, {tier_line(tier)}")


def _mirrored(stats: dict[str, Any]) -> None:
    """Print what is known of upstreams' pools: from their events, and from their own figures."""
    if stats["cached"] is not None:
        typer.echo(
            f"{stats['cached']:,} cached blocks ({stats['distinct']:,} distinct) of {stats['block_size'] or '?'} tokens,"
            f" {stats['evictions']:,} evictions, as the upstream published them"
        )
    for engine in stats["told"]:
        typer.echo(f"  {engine_line(engine)}")
    for stream in stats["streams"]:
        known = "complete" if stream["complete"] else "incomplete: events from before were lost"
        state = "following" if stream["connected"] else "not connected to"
        typer.echo(f"  {state} {stream['endpoint']}, {stream['batches']:,} batches, {known}")


@app.command("ls")
def ls(
    url: Url = DEFAULT_URL,
    token: Token = None,
    state: Annotated[State | None, typer.Option(help="Only blocks in this state.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List blocks in the order of their ids.

    Example: kvproxy blocks ls --state cached
    """
    blocks = ProxyClient(url, token).get("/admin/blocks")
    chosen = [block for block in blocks if state is None or block["state"] == state]
    _print_blocks(chosen, as_json, "no block" if state is None else f"no block is {state}")


@app.command("queue")
def queue(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List the blocks that no request holds, the next to be evicted first.

    Example: kvproxy blocks queue | head
    """
    _print_blocks(ProxyClient(url, token).get("/admin/blocks/queue"), as_json, "requests hold every block")


def _print_blocks(blocks: list[dict[str, Any]], as_json: bool, empty: str) -> None:
    if as_json:
        print_json(blocks)
    elif blocks and blocks[0].get("copies") is not None:
        print_table(_MIRRORED, map(_mirrored_row, blocks))
    else:
        print_table(_OWN, map(_own_row, blocks), empty=empty)


_OWN: tuple[Column | str, ...] = (
    "block#", "state", "refs#", digest("hash"), digest("parent"), "group#", "last use#", text("requests"),
)  # fmt: skip
_MIRRORED: tuple[Column | str, ...] = (
    digest("hash"), digest("parent"), "tokens#", "copies#", "groups", "rank#", "medium", "engine",
)  # fmt: skip


def _own_row(block: dict[str, Any]) -> tuple[object, ...]:
    requests = ", ".join(block["requests"]) or None
    return (str(block["id"]), block["state"], block["ref_count"], block["hash"], block["parent"], block["group"],
            block["last_accessed"], requests)  # fmt: skip


def _mirrored_row(block: dict[str, Any]) -> tuple[object, ...]:
    groups = ", ".join(map(str, block["groups"])) or None
    return (block["hash"], block["parent"], block["num_tokens"], block["copies"], groups, block["rank"], block["medium"],
            block["engine"])  # fmt: skip


@app.command("show")
def show(
    id: Annotated[str, typer.Argument(help="The block's number, or the beginning of a mirrored block's hash.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show one block with its tokens and their text.

    Example: kvproxy blocks show 1
    """
    block = ProxyClient(url, token).get(f"/admin/blocks/{part(id)}")
    if not isinstance(block, dict) or "tokens" not in block:
        # The word is another route, such as stats.
        raise NotFound(f"no block {id!r}: blocks ls lists them")
    if as_json:
        print_json(block)
    else:
        print_facts((name, repr(value) if name == "text" else value) for name, value in block.items())


@app.command("chains")
def chains(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List chains of cached blocks, the most recently used first. A chain is the cached beginning of a prompt.

    Example: kvproxy blocks chains
    """
    found = ProxyClient(url, token).get("/admin/blocks/chains")
    if as_json:
        print_json(found)
        return
    names = ("leaf", "num_blocks", "num_tokens", "in_use")
    print_table(
        (digest("leaf"), "blocks#", "tokens#", "in use#", text("begins")),
        ((*(chain[name] for name in names), repr(chain["begins"])) for chain in found),
        empty="no chain is cached",
    )


@app.command("stats")
def stats(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Print figures of the pool: its blocks, hits and evictions.

    Example: kvproxy blocks stats --json
    """
    found = ProxyClient(url, token).get("/admin/blocks/stats")
    if as_json:
        print_json(found)
    else:
        residency = found.pop("residency", None) or {}
        if residency.get("evicted"):
            found |= {f"residency {name}": value for name, value in residency.items() if value is not None}
        plain = {name: value for name, value in found.items() if value is not None and not isinstance(value, list)}
        print_facts((name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in plain.items())
        for engine in found["told"]:
            typer.echo(engine_line(engine))
        for line in group_lines(found["groups"]):
            typer.echo(line)


@app.command("reset")
def reset(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Forget everything in the prefix cache, of the embedded engine or of every upstream.

    An engine refuses while a request or a pin holds blocks; the exit code is 1 then.

    Example: kvproxy blocks reset
    """
    done = ProxyClient(url, token).post("/admin/blocks/reset")
    if as_json:
        print_json(done)
    else:
        for line in _reset_lines(done):
            typer.echo(line)
    if not done["reset"]:
        raise typer.Exit(1)


def _reset_lines(done: dict[str, Any]) -> list[str]:
    """What became of a reset: a line for each upstream, or one for the embedded engine."""
    if done.get("engines"):
        return [_engine_line(each) for each in done["engines"]]
    if done["reset"]:
        return ["the prefix cache is empty now"]
    if done["pinned"]:
        return [f"refused: {done['pinned']} blocks are pinned; blocks pins lists the pins, blocks unpin removes one"]
    return ["refused: a request holds blocks; try again when it has ended"]


def _engine_line(engine: dict[str, Any]) -> str:
    what = "its prefix cache is empty now" if engine["reset"] else "not reset"
    return f"{engine['engine']}: {what}" + (f" ({engine['message']})" if engine["message"] else "")
