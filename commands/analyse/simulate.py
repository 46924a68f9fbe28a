"""`kvproxy simulate`: which pool, tiers, and routing would serve a trace best?"""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from kvproxy.commands.analyse.options import parse_sizes, reject_options, report_source, save_report
from kvproxy.commands.files import check_writable, reread, save_charts, shown_name
from kvproxy.commands.formatting import Formatted, decimal, percent
from kvproxy.commands.options import WRITES, Plot
from kvproxy.commands.output import Output, print_note, print_text, progress_bar
from kvproxy.commands.tables import Row, number_column, print_table
from kvproxy.units import parse_bytes, plural

if TYPE_CHECKING:
    from kvproxy.analyse.simulate.capacity_plan import CapacityPlan
    from kvproxy.analyse.simulate.pool_cost import EngineSpeed, EngineTier, Tier
    from kvproxy.analyse.simulate.routing_simulation import RoutingResult
    from kvproxy.analyse.simulate.trace_reader import Workload


_DEFAULT_POLICIES = "lru,s3fifo,belady"
_DEFAULT_FLEET_BLOCKS = 5000
_DEFAULT_PREFILL_RATE = 10_000.0
_POOL_FIELDS = {"Pool": "pool_tokens", "price per million tokens": "price"}


@dataclass(frozen=True, slots=True)
class SimulatedEngineOptions:
    model: Annotated[str | None, Option(help="Model folder, config.json or Hugging Face id, for bytes.")] = None
    bytes_per_token: Annotated[int | None, Option(help="KV bytes per token, instead of --model.", min=1)] = None
    tier: Annotated[list[str] | None, Option(help="Tier in GiB: host=64, disk=500 or redis=1000@2 (GiB/s).")] = None
    prefill_rate: Annotated[float, Option(help="Prompt tokens per second of an engine.")] = _DEFAULT_PREFILL_RATE
    hour_price: Annotated[float, Option(help="Price of an engine for an hour.", min=0)] = 0.0


@dataclass(frozen=True, slots=True)
class FleetOptions:
    engines: Annotated[int | None, Option(help="Compare routing between this many engines.", min=1)] = None
    ttft: Annotated[float | None, Option(help="Find the number of engines for this p99 TTFT in seconds.")] = None
    event_delay: Annotated[float, Option(help="Seconds until routing learns of KV events.", min=0)] = 0.0
    event_loss: Annotated[float, Option(help="Share of KV events that routing misses.", min=0, max=1)] = 0.0


def simulate(
    *,
    traces: Annotated[
        list[Path],
        Argument(
            help="Traces of Mooncake, Qwen-Bailian, WEKA or BurstGPT, tokens, KV events, journals, transcripts, or folders,"
            " read as one; - is stdin."
        ),
    ],
    blocks: Annotated[str | None, Option(help="Pool sizes in blocks, such as 1000,5000.")] = None,
    memory: Annotated[str | None, Option(help="Pool sizes in memory, such as 20GiB,40GiB.")] = None,
    policies: Annotated[str | None, Option(help="Eviction policies.", show_default=_DEFAULT_POLICIES)] = None,
    exact: Annotated[bool, Option("--exact", help="Do not sample large traces for policies besides lru.")] = False,
    block_size: Annotated[int | None, Option(help="Tokens per block.", min=1, show_default="from trace, or 16")] = None,
    users: Annotated[int | None, Option(help="Number of concurrent files.", min=1, show_default="as recorded")] = None,
    plot: Plot = None,
    report: Annotated[Path | None, Option(help="Write a report to this .html file."), WRITES] = None,
    engine: SimulatedEngineOptions,
    fleet: FleetOptions,
) -> Output:
    """Replay a trace to size a pool, its tiers, or a fleet.

    It reports hit rates by pool size and eviction policy, and the time to the first token.

    Example: kvproxy simulate trace.jsonl --model Qwen/Qwen3-8B --tier host=64 --report capacity.html
    """
    from kvproxy.analyse.simulate.capacity_plan import plan_capacity
    from kvproxy.analyse.simulate.pool_size_sweep import default_sizes
    from kvproxy.analyse.workload_reader import read_workload
    from kvproxy.errors import InvalidRequest, NotFound

    for trace in traces:
        if str(trace) != "-" and not trace.exists():
            raise NotFound(f"no trace {trace}: check the path")
    check_writable(report, (".html",))
    if engine.prefill_rate <= 0:
        raise typer.BadParameter("--prefill-rate must be above 0")
    if blocks is not None and memory is not None:
        raise typer.BadParameter("--blocks and --memory exclude each other")
    is_fleet = fleet.engines is not None or fleet.ttft is not None
    if is_fleet:
        sweep_only: dict[str, tuple[object, object]] = {
            "--policies": (policies, None),
            "--exact": (exact, False),
            "--plot": (plot, None),
            "--report": (report, None),
            "--hour-price": (engine.hour_price, 0),
        }
        if memory is None and not engine.tier:
            sweep_only |= {"--model": (engine.model, None), "--bytes-per-token": (engine.bytes_per_token, None)}
        reject_options(sweep_only, "with --engines or --ttft")
        if fleet.ttft is not None:
            reject_options({"--engines": (fleet.engines, None)}, "with --ttft")
    else:
        events = {"--event-delay": (fleet.event_delay, 0), "--event-loss": (fleet.event_loss, 0)}
        reject_options(events, "without --engines or --ttft")
    chosen = _parse_policies(_DEFAULT_POLICIES if policies is None else policies)
    if users is not None and len(traces) == 1 and not traces[0].is_dir():
        raise typer.BadParameter("--users requires a folder with a file for each conversation, or several files")
    with contextlib.ExitStack() as copies:
        files = [copies.enter_context(reread(trace)) for trace in traces]
        workload = read_workload(*files, block_size=block_size, users=users)
    name = ", ".join(shown_name(trace).name for trace in traces)
    for note in workload.notes:
        print_note(note)
    if "sessions" in chosen and not workload.has_times:
        print_note("the trace has no times, so the policy sessions is the same as lru")
    speed, tiers = _engine_speed(engine, workload), _parse_tiers(engine)
    needing_bytes = {"--tier": tiers, "--memory": memory, "--hour-price": engine.hour_price}
    if not is_fleet:
        needing_bytes |= {"--prefill-rate": engine.prefill_rate != _DEFAULT_PREFILL_RATE}
    if speed is None and (names := [name for name, value in needing_bytes.items() if value]):
        raise typer.BadParameter(f"{names[0]} requires --model or --bytes-per-token")
    sizes = parse_sizes(blocks, 1) or _memory_sizes_in_blocks(memory, speed, workload)
    if is_fleet:
        in_tiers = [] if speed is None else [tier.for_engine(speed, workload.block_tokens) for tier in tiers]
        sizes = sizes or [_DEFAULT_FLEET_BLOCKS]
        return _compare_routing(name, workload, fleet, sizes, engine.prefill_rate, in_tiers)
    if workload.has_only_lengths:
        raise InvalidRequest(f"{name} has lengths only, so no reuse can be known: give --engines or --ttft")
    sizes = sizes or default_sizes(workload.chains)
    with progress_bar("simulating") as progress:
        plan = plan_capacity(name, workload, sizes, chosen, tiers, speed, progress, exact=exact)
    charts = plan.charts()
    save_charts(charts, plot)
    if report is not None:
        _write_report(plan, workload, traces, report)
    return Output(_json_document(plan), lambda: _print_plan(plan), charts=charts)


def _write_report(plan: "CapacityPlan", workload: "Workload", traces: Sequence[Path], report: Path) -> None:
    from kvproxy.analyse.report import Report, Table

    times = [arrival.seconds for arrival in workload.arrivals]
    source = report_source(
        traces,
        (times[0], times[-1]) if workload.has_times else None,
        requests=len(times),
        tokens=plan.sweep.tokens,
        currency="that of --hour-price" if plan.speed and plan.speed.hour_price else None,
    )
    head, rows = plan.table()
    summary = [plan.recommendation(), f"{plan.ceiling_sentence().capitalize()}."]
    save_report(
        Report(f"Capacity for {plan.name}", summary, source, plan.charts(), [Table(head, rows)], plan.assumptions()),
        report,
    )


def _parse_policies(text: str) -> list[str]:
    from kvproxy.analyse.simulate.pool_simulation import policy_names

    chosen = [name.strip() for name in text.split(",")]
    unknown = [name for name in chosen if name not in policy_names()]
    if unknown:
        raise typer.BadParameter(f"unknown policy {unknown[0]!r}: use {', '.join(policy_names())}")
    return chosen


def _engine_speed(engine: SimulatedEngineOptions, workload: "Workload") -> "EngineSpeed | None":
    from kvproxy.analyse.simulate.pool_cost import EngineSpeed, kv_size

    token_bytes: float | None = engine.bytes_per_token
    if token_bytes is None and engine.model is not None:
        tokens = sum(arrival.tokens for arrival in workload.arrivals)
        token_bytes = kv_size(engine.model).bytes_per_token(tokens / max(1, len(workload.arrivals)))
    return None if token_bytes is None else EngineSpeed(engine.prefill_rate, token_bytes, engine.hour_price)


def _parse_tiers(engine: SimulatedEngineOptions) -> "list[Tier]":
    from kvproxy.analyse.simulate.pool_cost import parse_tier

    try:
        return [parse_tier(text) for text in engine.tier or []]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _memory_sizes_in_blocks(text: str | None, speed: "EngineSpeed | None", workload: "Workload") -> list[int] | None:
    if text is None or speed is None:
        return None
    try:
        block_bytes = speed.token_bytes * workload.block_tokens
        return [max(1, int(parse_bytes(size) / block_bytes)) for size in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _compare_routing(
    trace: str,
    workload: "Workload",
    fleet: FleetOptions,
    sizes: list[int],
    prefill_rate: float,
    tiers: "list[EngineTier]",
) -> Output:
    from kvproxy.analyse.simulate.routing_simulation import (
        MAX_ENGINES,
        POLICIES,
        TIER_POLICY,
        FleetShape,
        RoutingResult,
        simulate_routing,
        smallest_fleet,
    )
    from kvproxy.errors import InvalidRequest

    if len(sizes) > 1:
        raise typer.BadParameter("for routing, --blocks and --memory take one size: the pool of each engine")
    if not workload.has_times:
        raise InvalidRequest(f"{trace}: routing needs a timestamp on every line")
    events = (fleet.event_delay, fleet.event_loss)
    shape = FleetShape(fleet.engines or 1, sizes[0], workload.block_tokens, prefill_rate, *events, tuple(tiers))
    policies = (*POLICIES, TIER_POLICY) if tiers else POLICIES
    results: dict[str, RoutingResult | None] = {}
    with progress_bar("simulating") as progress:
        for number, policy in enumerate(policies, 1):
            if fleet.ttft is None:
                results[policy] = simulate_routing(workload.arrivals, shape, policy)
            else:
                results[policy] = smallest_fleet(workload.arrivals, shape, policy, fleet.ttft)
            progress(number / len(policies))
    unknown = dict.fromkeys(field.name for field in fields(RoutingResult))
    document = {
        "shape": asdict(shape) | {"engines": fleet.engines},
        "requests": len(workload.arrivals),
        "ttft": fleet.ttft,
        "max_engines": MAX_ENGINES,
        "results": [asdict(result) if result else unknown | {"policy": policy} for policy, result in results.items()],
    }

    def show() -> None:
        print_table(_routing_row(policy, result) for policy, result in results.items())
        for tier in tiers:
            print_text(
                f"{tier.name}: {tier.blocks:,} blocks per engine, loaded at {tier.load_rate:,.0f} tokens per second"
            )
        if missed := [policy for policy, result in results.items() if result is None]:
            print_text(f"not reached with up to {MAX_ENGINES} engines: a p99 of {fleet.ttft:g} s ({', '.join(missed)})")

    return Output(document, show)


def _routing_row(policy: str, result: "RoutingResult | None") -> Row:
    return {
        "Routing": policy,
        "Engines#": result.engines if result else Formatted("not reached", None),
        "Hit tokens#": result and result.hit_tokens,
        "Hit rate#": result and percent(result.hit_rate),
        "Imbalance#": result and decimal(result.imbalance),
        "Wait mean#": result and Formatted(f"{result.wait_mean:.2f} s", result.wait_mean),
        "Wait p50#": result and Formatted(f"{result.wait_p50:.2f} s", result.wait_p50),
        "Wait p99#": result and Formatted(f"{result.wait_p99:.2f} s", result.wait_p99),
        "Refused#": result and result.refused,
    }


def _print_plan(plan: "CapacityPlan") -> None:
    sweep = plan.sweep
    print_table(_pool_row(plan, at) for at in range(len(sweep.sizes)))
    print_text(
        f"{plural(sweep.requests, 'request')}, {plural(sweep.tokens, 'token')} ({plural(sweep.blocks, 'block')})"
    )
    print_text(plan.ceiling_sentence())
    print_text(plan.recommendation())


def _pool_row(plan: "CapacityPlan", size_index: int) -> Row:
    errors = {name: of_sizes[size_index] for name, of_sizes in plan.sweep.errors.items() if name != "lru"}
    return {
        **{
            number_column(name, _POOL_FIELDS.get(name, name.lower())): Formatted(*cell)
            for name, cell in plan.cells(size_index).items()
        },
        # At a terminal, the errors follow the rates.
        **{
            number_column(f"{name} error", f"{name}_error", hides_empty=True): Formatted("-", error)
            for name, error in errors.items()
        },
    }


def _json_document(plan: "CapacityPlan") -> dict[str, Any]:
    return {
        **asdict(plan.sweep),
        "ceilings": asdict(plan.ceilings),
        "bytes_per_token": plan.speed.token_bytes if plan.speed else None,
        "sufficient_size": {name: plan.sweep.sufficient_size(name) for name in plan.sweep.rates},
        "costs": [asdict(cost) for cost in plan.costs],
        "recommendation": plan.recommendation(),
        "assumptions": plan.assumptions(),
    }
