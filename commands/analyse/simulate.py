"""kvproxy simulate"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.analyse.options import parse_sizes, pool_size
from kvproxy.commands.command import command
from kvproxy.commands.files import PLOT_SUFFIXES, check_writable, save_charts
from kvproxy.commands.options import Plot
from kvproxy.commands.output import Output, print_charts, progress_bar
from kvproxy.commands.tables import print_table, table

if TYPE_CHECKING:
    from kvproxy.offline.simulate.pool_size_sweep import Sweep


@command
def simulate(
    trace: Annotated[
        Path,
        typer.Argument(help="Trace of Mooncake, Qwen-Bailian or WEKA, or JSON lines with tokens."),
    ],
    blocks: Annotated[str | None, typer.Option(help="Pool sizes in blocks, such as 1000,5000.")] = None,
    policies: Annotated[str, typer.Option(help="Eviction policies to compare.")] = "lru,s3fifo,belady",
    block_size: Annotated[
        int | None, typer.Option(help="Tokens per block.", min=1, show_default="from the trace; 16 for tokens")
    ] = None,
    plot: Plot = None,
    model: Annotated[Path | None, typer.Option(help="Model folder, to show sizes in GiB.")] = None,
    bytes_per_token: Annotated[int | None, typer.Option(help="KV bytes per token, instead of --model.")] = None,
    engines: Annotated[int | None, typer.Option(help="Compare routing between this many engines.", min=1)] = None,
    prefill_rate: Annotated[float, typer.Option(help="Prompt tokens per second of an engine, for --engines.")] = 10_000,
) -> Output:
    """Replay a trace to size a pool or compare routing.

    It reports hit rates by pool size and eviction policy.

    Example: kvproxy simulate trace.jsonl --blocks 1000,10000 --plot curves.svg
    """
    from kvproxy.errors import NotFound
    from kvproxy.offline.simulate.pool_size_sweep import bytes_per_token as model_bytes_per_token
    from kvproxy.offline.simulate.pool_size_sweep import sweep_charts

    if not trace.is_file():
        raise NotFound(f"no trace {trace}: check the path")
    check_writable(plot, PLOT_SUFFIXES)
    if engines is not None:
        return _compare_routing(trace, engines, blocks, block_size, prefill_rate)
    result = _sweep(trace, parse_sizes(blocks, 1), policies, block_size)
    if model is not None:
        bytes_per_token = model_bytes_per_token(model)
    charts = sweep_charts(result)
    save_charts(charts, plot)

    def show() -> None:
        _print(result, bytes_per_token)
        print_charts(charts)

    return Output(_document(result, bytes_per_token), show)


def _compare_routing(
    trace: Path, engines: int, blocks: str | None, block_size: int | None, prefill_rate: float
) -> Output:
    from dataclasses import asdict

    from kvproxy.offline.simulate.routing_simulation import POLICIES, FleetShape, simulate_routing
    from kvproxy.offline.simulate.trace_reader import read_arrivals

    if blocks is not None and not blocks.isdigit():
        raise typer.BadParameter("with --engines, --blocks takes one number: the pool of each engine")
    if prefill_rate <= 0:
        raise typer.BadParameter("--prefill-rate must be above 0")
    arrivals, tokens = read_arrivals(trace, block_size)
    shape = FleetShape(engines, int(blocks) if blocks else 5000, tokens, prefill_rate)
    results = []
    with progress_bar("simulating") as progress:
        for number, policy in enumerate(POLICIES, 1):
            results.append(simulate_routing(arrivals, shape, policy))
            progress(number / len(POLICIES))
    columns = ("Routing", "Hit tokens#", "Hit rate#", "Imbalance#", "Wait p50#", "Wait p99#", "Refused#")
    rows = (
        (
            each.policy,
            each.hit_tokens,
            f"{each.hit_rate:.4f}",
            f"{each.imbalance:.2f}",
            f"{each.wait_p50:.2f} s",
            f"{each.wait_p99:.2f} s",
            each.refused,
        )
        for each in results
    )
    document = {"shape": asdict(shape), "requests": len(arrivals), "results": [asdict(each) for each in results]}
    return table(document, columns, rows)


def _sweep(trace: Path, sizes: list[int] | None, policies: str, block_size: int | None) -> "Sweep":
    from kvproxy.offline.simulate.eviction_policies import POLICY_NAMES
    from kvproxy.offline.simulate.pool_size_sweep import default_sizes, sweep
    from kvproxy.offline.simulate.trace_reader import read_chains

    chosen = [name.strip() for name in policies.split(",")]
    unknown = [name for name in chosen if name not in POLICY_NAMES]
    if unknown:
        raise typer.BadParameter(f"unknown policy {unknown[0]!r}: use {', '.join(POLICY_NAMES)}")
    requests, tokens = read_chains(trace, block_size)
    sizes = sizes or default_sizes(requests)
    total, done = len(set(sizes)) * len(chosen), 0
    with progress_bar("simulating") as progress:

        def advance() -> None:
            nonlocal done
            done += 1
            progress(done / total)

        return sweep(requests, tokens, sizes, chosen, advance)


def _print(result: "Sweep", bytes_per_token: int | None) -> None:
    names = list(result.rates)
    rows = []
    for index, size in enumerate(result.sizes):
        gib = [_gib(result, size, bytes_per_token)] if bytes_per_token else []
        rows.append(
            [pool_size(size, result.block_tokens), *gib, *(f"{result.rates[name][index]:.4f}" for name in names)]
        )
    columns = ["Pool#", *(["GiB#"] if bytes_per_token else []), *(f"{name}#" for name in names)]
    print_table(columns, rows)
    typer.echo(
        f"{result.requests:,} requests, {pool_size(result.blocks, result.block_tokens)}; hit rate of an unlimited pool"
        f" {result.unlimited:.4f}"
    )
    for name in names:
        enough = result.sufficient_size(name)
        if enough is None:
            typer.echo(f"{name}: no size reaches 90% of it")
        else:
            memory = f", {_gib(result, enough, bytes_per_token)} GiB," if bytes_per_token else ""
            typer.echo(f"{name}: {pool_size(enough, result.block_tokens)}{memory} reach 90% of it")


def _gib(result: "Sweep", size: int, bytes_per_token: int | None) -> str:
    return f"{size * result.block_tokens * (bytes_per_token or 0) / 2**30:.1f}"


def _document(result: "Sweep", bytes_per_token: int | None) -> dict[str, Any]:
    return {
        "requests": result.requests,
        "blocks": result.blocks,
        "block_tokens": result.block_tokens,
        "bytes_per_token": bytes_per_token,
        "unlimited": result.unlimited,
        "sizes": list(result.sizes),
        "rates": {name: list(rates) for name, rates in result.rates.items()},
        "sufficient_size": {name: result.sufficient_size(name) for name in result.rates},
    }
