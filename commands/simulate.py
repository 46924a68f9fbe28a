"""kvproxy simulate: replay a trace against other pool sizes and eviction policies."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.files import PICTURES, check_place, write_parts, writing
from kvproxy.commands.options import Json
from kvproxy.commands.output import print_facts, print_json, print_table, progress_bar
from kvproxy.commands.simulate_fleet import simulate_fleet

if TYPE_CHECKING:
    from kvproxy.offline.simulate.sweep import Sweep


def simulate(
    trace: Annotated[
        Path,
        typer.Argument(
            help="A conformance trace, a trace of Mooncake, Qwen-Bailian, or WEKA, or JSON lines with tokens."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File for the result lines of a conformance trace.", show_default=False),
    ] = None,
    blocks: Annotated[str | None, typer.Option(help="Pool sizes in blocks, as 1000,5000.", show_default=False)] = None,
    policies: Annotated[str, typer.Option(help="Eviction policies to compare.")] = "lru,lfu,s3fifo,arc,belady",
    block_size: Annotated[
        int | None,
        typer.Option(help="Tokens in a block.", min=1, show_default="from the trace; 16 for lines with tokens"),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the curves into this .png or .svg file.", show_default=False)
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder of a model, so that sizes are told in GiB too.", show_default=False)
    ] = None,
    bytes_per_token: Annotated[
        int | None, typer.Option(help="Bytes of a token's keys and values, instead of --model.", show_default=False)
    ] = None,
    engines: Annotated[
        int | None, typer.Option(help="Compare ways to route between so many engines.", min=1, show_default=False)
    ] = None,
    prefill_rate: Annotated[
        float, typer.Option(help="Prompt tokens that an engine computes a second, for --engines.")
    ] = 10_000,
    as_json: Json = False,
) -> None:
    """Replay a trace: hit rates by pool size and eviction policy, or what routing between engines does.

    A conformance trace is replayed through the block cache itself, and tells what its blocks did.

    Example: kvproxy simulate trace.jsonl --blocks 1000,10000 --plot curves.svg
    """
    from kvproxy.errors import NotFound
    from kvproxy.offline.simulate.workload import kind_of

    if not trace.is_file():
        raise NotFound(f"no trace {trace}")
    check_place(plot, PICTURES)
    check_place(out)
    if kind_of(trace) == "conformance":
        _conformance(trace, out, as_json)
        return
    if engines is not None:
        simulate_fleet(trace, engines, blocks, block_size, prefill_rate, as_json)
        return
    result = _sweep(trace, blocks, policies, block_size)
    if model is not None:
        from kvproxy.offline.simulate.sweep import bytes_per_token as of_model

        bytes_per_token = of_model(model)
    if plot is not None:
        from kvproxy.offline.simulate.plot import plot as draw

        with writing(plot):
            draw(result, plot)
    if as_json:
        print_json(_document(result, bytes_per_token))
    else:
        _render(result, bytes_per_token)


def _conformance(trace: Path, out: Path | None, as_json: bool) -> None:
    import json

    from kvproxy.offline.simulate.replay import replay

    lines = list(replay(trace))
    if out is not None:
        write_parts(out, (f"{line}\n".encode() for line in lines))
    end = json.loads(lines[-1])
    end["hit_rate"] = end["hits"] / end["queries"] if end["queries"] else 0.0
    if as_json:
        print_json(end)
    else:
        print_facts(end.items())


def _sweep(trace: Path, blocks: str | None, policies: str, block_size: int | None) -> "Sweep":
    from kvproxy.offline.simulate.eviction_policies import POLICY_NAMES
    from kvproxy.offline.simulate.sweep import default_sizes, sweep
    from kvproxy.offline.simulate.workload import read_chains

    chosen = [name.strip() for name in policies.split(",")]
    unknown = [name for name in chosen if name not in POLICY_NAMES]
    if unknown:
        raise typer.BadParameter(f"unknown policy {unknown[0]!r}: use {', '.join(POLICY_NAMES)}")
    try:
        sizes = [int(size) for size in blocks.split(",")] if blocks else None
    except ValueError:
        raise typer.BadParameter(f"--blocks takes whole numbers, as in 1000,5000, not {blocks!r}") from None
    if sizes and min(sizes) < 1:
        raise typer.BadParameter("a pool has at least one block")
    requests, tokens = read_chains(trace, block_size)
    sizes = sizes or default_sizes(requests)
    with progress_bar() as progress:
        task = progress.add_task("simulating", total=len(set(sizes)) * len(chosen))
        return sweep(requests, tokens, sizes, chosen, lambda: progress.advance(task))


def _render(result: "Sweep", bytes_per_token: int | None) -> None:
    names = list(result.rates)
    rows = []
    for index, size in enumerate(result.sizes):
        gib = [_gib(result, size, bytes_per_token)] if bytes_per_token else []
        rows.append([size, *gib, *(f"{result.rates[name][index]:.4f}" for name in names)])
    columns = ["blocks#", *(["GiB#"] if bytes_per_token else []), *(f"{name}#" for name in names)]
    print_table(columns, rows)
    typer.echo(f"{result.requests:,} requests, {result.blocks:,} blocks; an endless pool hits {result.infinite:.4f}")
    for name in names:
        enough = result.enough(name)
        if enough is None:
            typer.echo(f"{name}: none of these sizes reaches 90% of that")
        else:
            memory = f" ({_gib(result, enough, bytes_per_token)} GiB)" if bytes_per_token else ""
            typer.echo(f"{name}: {enough:,} blocks{memory} reach 90% of that")


def _gib(result: "Sweep", size: int, bytes_per_token: int | None) -> str:
    return f"{size * result.block_tokens * (bytes_per_token or 0) / 2**30:.1f}"


def _document(result: "Sweep", bytes_per_token: int | None) -> dict[str, Any]:
    return {
        "requests": result.requests,
        "blocks": result.blocks,
        "block_tokens": result.block_tokens,
        "bytes_per_token": bytes_per_token,
        "infinite": result.infinite,
        "sizes": list(result.sizes),
        "rates": {name: list(rates) for name, rates in result.rates.items()},
        "enough": {name: result.enough(name) for name in result.rates},
    }
