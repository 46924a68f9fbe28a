from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.analyse.options import parse_sizes
from kvproxy.commands.command import command
from kvproxy.commands.files import PLOT_SUFFIXES, check_writable, explain_write_errors, save_charts
from kvproxy.commands.options import Plot
from kvproxy.commands.output import Output, print_charts, print_note, print_text, progress_bar
from kvproxy.commands.tables import Row, print_table, table_output
from kvproxy.units import parse_bytes, plural

if TYPE_CHECKING:
    from kvproxy.offline.simulate.capacity_plan import CapacityPlan
    from kvproxy.offline.simulate.pool_cost import EngineSpeed, Tier
    from kvproxy.offline.simulate.trace_reader import Workload


@dataclass(frozen=True, slots=True)
class SimulatedEngineOptions:
    model: Annotated[
        str | None, typer.Option(help="Model folder, config.json or Hugging Face id, for sizes in memory.")
    ] = None
    bytes_per_token: Annotated[int | None, typer.Option(help="KV bytes per token, instead of --model.", min=1)] = None
    tier: Annotated[
        list[str] | None, typer.Option(help="Tier beyond the pool in GiB: host=64, disk=500 or redis=1000@2 (GiB/s).")
    ] = None
    prefill_rate: Annotated[float, typer.Option(help="Prompt tokens per second of an engine.")] = 10_000
    hour_price: Annotated[float, typer.Option(help="Price of an engine for an hour.", min=0)] = 0.0


@dataclass(frozen=True, slots=True)
class FleetOptions:
    engines: Annotated[int | None, typer.Option(help="Compare routing between this many engines.", min=1)] = None
    ttft: Annotated[
        float | None, typer.Option(help="Find the number of engines for this p99 of the seconds to the first token.")
    ] = None
    event_delay: Annotated[float, typer.Option(help="Seconds until routing learns of KV events.", min=0)] = 0.0
    event_loss: Annotated[float, typer.Option(help="Share of KV events that routing misses.", min=0, max=1)] = 0.0


@command
def simulate(
    *,
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
    engine: SimulatedEngineOptions,
    fleet: FleetOptions,
) -> Output:
    """Replay a trace to size a pool, its tiers, or a fleet.

    It reports hit rates by pool size and eviction policy, and the time to the first token.

    Example: kvproxy simulate trace.jsonl --model Qwen/Qwen3-8B --tier host=64 --report capacity.html
    """
    from kvproxy.errors import NotFound
    from kvproxy.offline.simulate.capacity_plan import plan_capacity, write_report
    from kvproxy.offline.simulate.pool_size_sweep import default_sizes
    from kvproxy.offline.workload_reader import read_workload

    if not trace.exists():
        raise NotFound(f"no trace {trace}: check the path")
    check_writable(plot, PLOT_SUFFIXES)
    check_writable(report, (".html", ".md"))
    if engine.prefill_rate <= 0:
        raise typer.BadParameter("--prefill-rate must be above 0")
    chosen = _parse_policies(policies)
    workload = read_workload(trace, block_size, users)
    for note in workload.notes:
        print_note(note)
    if fleet.engines is not None or fleet.ttft is not None:
        return _compare_routing(trace, workload, fleet, blocks, engine.prefill_rate)
    speed, tiers = _engine_speed(engine, workload), _parse_tiers(engine)
    if speed is None and (memory is not None or tiers):
        raise typer.BadParameter(f"--{'tier' if tiers else 'memory'} requires --model or --bytes-per-token")
    sizes = parse_sizes(blocks, 1) or _memory_sizes(memory, speed, workload) or default_sizes(workload.chains)
    with progress_bar("simulating") as progress:
        plan = plan_capacity(trace.name, workload, sizes, chosen, tiers, speed, progress, exact=exact)
    charts = plan.charts()
    save_charts(charts, plot)
    if report is not None:
        with explain_write_errors(report):
            write_report(plan, report)

    def show() -> None:
        _print(plan)
        print_charts(charts)

    return Output(_document(plan), show)


def _parse_policies(text: str) -> list[str]:
    from kvproxy.offline.simulate.eviction_policies import POLICY_NAMES

    chosen = [name.strip() for name in text.split(",")]
    unknown = [name for name in chosen if name not in POLICY_NAMES]
    if unknown:
        raise typer.BadParameter(f"unknown policy {unknown[0]!r}: use {', '.join(POLICY_NAMES)}")
    return chosen


def _engine_speed(engine: SimulatedEngineOptions, workload: "Workload") -> "EngineSpeed | None":
    from kvproxy.offline.simulate.pool_cost import EngineSpeed, kv_size

    token_bytes: float | None = engine.bytes_per_token
    if token_bytes is None and engine.model is not None:
        tokens = sum(arrival.tokens for arrival in workload.arrivals)
        token_bytes = kv_size(engine.model).bytes_per_token(tokens / max(1, len(workload.arrivals)))
    return None if token_bytes is None else EngineSpeed(engine.prefill_rate, token_bytes, engine.hour_price)


def _parse_tiers(engine: SimulatedEngineOptions) -> "list[Tier]":
    from kvproxy.offline.simulate.pool_cost import parse_tier

    try:
        return [parse_tier(text) for text in engine.tier or []]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _memory_sizes(text: str | None, speed: "EngineSpeed | None", workload: "Workload") -> list[int] | None:
    if text is None or speed is None:
        return None
    try:
        block_bytes = speed.token_bytes * workload.block_tokens
        return [max(1, int(parse_bytes(size) / block_bytes)) for size in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _compare_routing(
    trace: Path, workload: "Workload", fleet: FleetOptions, blocks: str | None, prefill_rate: float
) -> Output:
    from kvproxy.errors import InvalidRequest
    from kvproxy.offline.simulate.routing_simulation import POLICIES, FleetShape, simulate_routing, smallest_fleet

    if blocks is not None and not blocks.isdigit():
        raise typer.BadParameter("for routing, --blocks takes one number: the pool of each engine")
    if not workload.has_times:
        raise InvalidRequest(f"{trace}: routing needs a timestamp on every line")
    pool, events = int(blocks) if blocks else 5000, (fleet.event_delay, fleet.event_loss)
    shape = FleetShape(fleet.engines or 1, pool, workload.block_tokens, prefill_rate, *events)
    results = []
    with progress_bar("simulating") as progress:
        for number, policy in enumerate(POLICIES, 1):
            if fleet.ttft is None:
                results.append(simulate_routing(workload.arrivals, shape, policy))
            else:
                results.append(smallest_fleet(workload.arrivals, shape, policy, fleet.ttft))
            progress(number / len(POLICIES))
    rows: list[Row] = [
        {
            "Routing": each.policy,
            "Engines#": each.engines,
            "Hit tokens#": each.hit_tokens,
            "Hit rate#": f"{each.hit_rate:.1%}",
            "Imbalance#": f"{each.imbalance:.2f}",
            "Wait p50#": f"{each.wait_p50:.2f} s",
            "Wait p99#": f"{each.wait_p99:.2f} s",
            "Refused#": each.refused,
        }
        for each in results
    ]
    document = {
        "shape": asdict(shape),
        "requests": len(workload.arrivals),
        "results": [asdict(each) for each in results],
    }
    return table_output(document, rows)


def _print(plan: "CapacityPlan") -> None:
    head, rows = plan.table()
    print_table({f"{name}#": value for name, value in zip(head, row, strict=True)} for row in rows)
    sweep = plan.sweep
    print_text(
        f"{plural(sweep.requests, 'request')}, {sweep.tokens:,} tokens ({sweep.blocks:,} blocks); hit rate of an unlimited"
        f" pool {sweep.unlimited:.1%}"
    )
    print_text(plan.recommendation())


def _document(plan: "CapacityPlan") -> dict[str, Any]:
    return {
        **asdict(plan.sweep),
        "bytes_per_token": plan.speed.token_bytes if plan.speed else None,
        "sufficient_size": {name: plan.sweep.sufficient_size(name) for name in plan.sweep.rates},
        "costs": [asdict(cost) for cost in plan.costs],
        "recommendation": plan.recommendation(),
        "assumptions": plan.assumptions(),
    }
