"""kvproxy simulate"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.analyse.options import parse_sizes, pool_size
from kvproxy.commands.command import command
from kvproxy.commands.files import PLOT_SUFFIXES, check_writable, explain_write_errors, save_charts
from kvproxy.commands.options import Plot
from kvproxy.commands.output import Output, print_charts, print_note, progress_bar
from kvproxy.commands.tables import print_table, table
from kvproxy.units import parse_bytes, plural

if TYPE_CHECKING:
    from kvproxy.offline.simulate.capacity_plan import CapacityPlan
    from kvproxy.offline.simulate.trace_reader import Workload


@command
def simulate(
    trace: Annotated[
        Path,
        typer.Argument(
            help="Trace of Mooncake, Qwen-Bailian, WEKA, BurstGPT or Azure, JSON lines with tokens, KV events, a journal, a"
            " transcript, or a folder of these."
        ),
    ],
    blocks: Annotated[str | None, typer.Option(help="Pool sizes in blocks, such as 1000,5000.")] = None,
    memory: Annotated[str | None, typer.Option(help="Pool sizes in memory, such as 20GiB,40GiB.")] = None,
    policies: Annotated[str, typer.Option(help="Eviction policies to compare.")] = "lru,s3fifo,belady",
    exact: Annotated[
        bool, typer.Option("--exact", help="Do not sample large traces for policies besides lru.")
    ] = False,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens per block.", min=1, show_default="from the trace, or 16")
    ] = None,
    users: Annotated[
        int | None, typer.Option(help="Files of a folder that run at once.", min=1, show_default="as recorded")
    ] = None,
    plot: Plot = None,
    report: Annotated[Path | None, typer.Option(help="Write a report to this .html or .md file.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model folder, config.json or Hugging Face id, for sizes in memory.")
    ] = None,
    bytes_per_token: Annotated[int | None, typer.Option(help="KV bytes per token, instead of --model.", min=1)] = None,
    tier: Annotated[
        list[str] | None, typer.Option(help="Tier beyond the pool in GiB: host=64, disk=500 or redis=1000@2 (GiB/s).")
    ] = None,
    prefill_rate: Annotated[float, typer.Option(help="Prompt tokens per second of an engine.")] = 10_000,
    hour_price: Annotated[float, typer.Option(help="Price of an engine for an hour.", min=0)] = 0.0,
    engines: Annotated[int | None, typer.Option(help="Compare routing between this many engines.", min=1)] = None,
    ttft: Annotated[
        float | None, typer.Option(help="Find the number of engines for this p99 of the seconds to the first token.")
    ] = None,
    event_delay: Annotated[float, typer.Option(help="Seconds until routing learns of KV events.", min=0)] = 0.0,
    event_loss: Annotated[float, typer.Option(help="Share of KV events that routing misses.", min=0, max=1)] = 0.0,
) -> Output:
    """Replay a trace to size a pool, its tiers, or a fleet.

    It reports hit rates by pool size and eviction policy, and the time to the first token.

    Example: kvproxy simulate trace.jsonl --model Qwen/Qwen3-8B --tier host=64 --report capacity.html
    """
    from kvproxy.errors import NotFound
    from kvproxy.offline.simulate.capacity_plan import write_report
    from kvproxy.offline.simulate.pool_size_sweep import sweep_charts
    from kvproxy.offline.trace_sources import read_workload

    if not trace.exists():
        raise NotFound(f"no trace {trace}: check the path")
    check_writable(plot, PLOT_SUFFIXES)
    check_writable(report, (".html", ".md"))
    if prefill_rate <= 0:
        raise typer.BadParameter("--prefill-rate must be above 0")
    chosen = _policies(policies)
    workload = read_workload(trace, block_size, users)
    for note in workload.notes:
        print_note(note)
    if engines is not None or ttft is not None:
        return _compare_routing(trace, workload, engines, ttft, blocks, prefill_rate, (event_delay, event_loss))
    speed = _token_bytes(workload, model, bytes_per_token)
    sizes = parse_sizes(blocks, 1) or _memory_sizes(memory, speed, workload.block_tokens)
    plan = _plan(trace, workload, sizes, chosen, exact, (tier or [], speed, prefill_rate, hour_price))
    charts = sweep_charts(plan.sweep)
    if plan.costs:
        charts.append(_ttft_chart(plan))
    save_charts(charts, plot)
    if report is not None:
        with explain_write_errors(report):
            write_report(plan, charts, report)

    def show() -> None:
        _print(plan)
        print_charts(charts)

    return Output(_document(plan), show)


def _policies(text: str) -> list[str]:
    from kvproxy.offline.simulate.eviction_policies import POLICY_NAMES

    chosen = [name.strip() for name in text.split(",")]
    unknown = [name for name in chosen if name not in POLICY_NAMES]
    if unknown:
        raise typer.BadParameter(f"unknown policy {unknown[0]!r}: use {', '.join(POLICY_NAMES)}")
    return chosen


def _token_bytes(workload: "Workload", model: str | None, given: int | None) -> float | None:
    from kvproxy.offline.simulate.pool_cost import kv_size

    if model is None or given is not None:
        return given
    tokens = sum(arrival.tokens for arrival in workload.arrivals)
    return kv_size(model).bytes_per_token(tokens / max(1, len(workload.arrivals)))


def _memory_sizes(text: str | None, token_bytes: float | None, block_tokens: int) -> list[int] | None:
    if text is None:
        return None
    if token_bytes is None:
        raise typer.BadParameter("--memory requires --model or --bytes-per-token")
    try:
        return [max(1, int(parse_bytes(size) / token_bytes / block_tokens)) for size in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _plan(
    trace: Path,
    workload: "Workload",
    sizes: list[int] | None,
    policies: list[str],
    exact: bool,
    costs: tuple[list[str], float | None, float, float],
) -> "CapacityPlan":
    from kvproxy.offline.simulate.capacity_plan import CapacityPlan
    from kvproxy.offline.simulate.pool_cost import GIB, EngineSpeed, parse_tier, pool_cost
    from kvproxy.offline.simulate.pool_simulation import lru_hits
    from kvproxy.offline.simulate.pool_size_sweep import default_sizes, sweep

    texts, token_bytes, prefill_rate, hour_price = costs
    try:
        tiers = [parse_tier(text) for text in texts]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if tiers and token_bytes is None:
        raise typer.BadParameter("--tier requires --model or --bytes-per-token")
    chains, block_tokens = workload.chains, workload.block_tokens
    sizes = sizes or default_sizes(chains)
    total, done = len(set(sizes)) * len(policies), 0
    with progress_bar("simulating") as progress:

        def advance() -> None:
            nonlocal done
            done += 1
            progress(done / total)

        result = sweep(chains, block_tokens, sizes, policies, advance, exact=exact)
    if token_bytes is None:
        return CapacityPlan(trace.name, result, (), (), (), None, workload.notes)
    speed = EngineSpeed(prefill_rate, token_bytes, hour_price)
    beyond = [int(tier.gib * GIB / token_bytes / block_tokens) for tier in tiers]
    (*pools,) = lru_hits(chains, [*result.sizes, *(max(1, size) for size in beyond)])
    hits = [block_tokens * found for found in pools]
    tokens, requests = sum(arrival.tokens for arrival in workload.arrivals), len(chains)
    lower = hits[len(result.sizes) :]
    found = [
        [pool_cost([hit, *more], each, speed, tokens=tokens, requests=requests) for hit in hits[: len(result.sizes)]]
        for each, more in ((tiers, lower), ([], []))
    ]
    return CapacityPlan(trace.name, result, found[0], found[1], tiers, speed, workload.notes)


def _ttft_chart(plan: "CapacityPlan") -> Any:
    from kvproxy.charts import Chart, ChartLine

    sizes = [size * plan.sweep.block_tokens for size in plan.sweep.sizes]
    lines = [ChartLine("lru", sizes, [cost.ttft for cost in plan.alone])]
    if plan.tiers:
        lines.append(ChartLine("lru with tiers", sizes, [cost.ttft for cost in plan.costs]))
    return Chart("tokens in the pool", "mean TTFT in seconds", lines, log_x=True)


def _compare_routing(
    trace: Path,
    workload: "Workload",
    engines: int | None,
    ttft: float | None,
    blocks: str | None,
    prefill_rate: float,
    events: tuple[float, float],
) -> Output:
    from kvproxy.errors import InvalidRequest
    from kvproxy.offline.simulate.routing_simulation import POLICIES, FleetShape, engines_for, simulate_routing

    if blocks is not None and not blocks.isdigit():
        raise typer.BadParameter("for routing, --blocks takes one number: the pool of each engine")
    if not workload.has_times:
        raise InvalidRequest(f"{trace}: routing needs a timestamp on every line")
    shape = FleetShape(engines or 1, int(blocks) if blocks else 5000, workload.block_tokens, prefill_rate, *events)
    results = []
    with progress_bar("simulating") as progress:
        for number, policy in enumerate(POLICIES, 1):
            if ttft is None:
                results.append(simulate_routing(workload.arrivals, shape, policy))
            else:
                results.append(engines_for(workload.arrivals, shape, policy, ttft))
            progress(number / len(POLICIES))
    columns = ("Routing", "Engines#", "Hit tokens#", "Hit rate#", "Imbalance#", "Wait p50#", "Wait p99#", "Refused#")
    rows = (
        (
            each.policy,
            each.engines,
            each.hit_tokens,
            f"{each.hit_rate:.4f}",
            f"{each.imbalance:.2f}",
            f"{each.wait_p50:.2f} s",
            f"{each.wait_p99:.2f} s",
            each.refused,
        )
        for each in results
    )
    document = {
        "shape": asdict(shape),
        "requests": len(workload.arrivals),
        "results": [asdict(each) for each in results],
    }
    return table(document, columns, rows)


def _print(plan: "CapacityPlan") -> None:
    head, rows = plan.table()
    print_table([f"{name}#" for name in head], rows)
    sweep = plan.sweep
    typer.echo(
        f"{plural(sweep.requests, 'request')}, {pool_size(sweep.blocks, sweep.block_tokens)}; hit rate of an unlimited pool"
        f" {sweep.unlimited:.4f}"
    )
    typer.echo(plan.recommendation())


def _document(plan: "CapacityPlan") -> dict[str, Any]:
    sweep = plan.sweep
    return {
        "requests": sweep.requests,
        "blocks": sweep.blocks,
        "block_tokens": sweep.block_tokens,
        "bytes_per_token": plan.speed.token_bytes if plan.speed else None,
        "unlimited": sweep.unlimited,
        "sizes": list(sweep.sizes),
        "rates": {name: list(rates) for name, rates in sweep.rates.items()},
        "errors": {name: list(errors) for name, errors in sweep.errors.items()},
        "sufficient_size": {name: sweep.sufficient_size(name) for name in sweep.rates},
        "costs": [asdict(cost) for cost in plan.costs],
        "recommendation": plan.recommendation(),
        "assumptions": plan.assumptions(),
    }
