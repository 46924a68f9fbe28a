"""kvproxy simulate TRACE --engines N: ways to route a trace between engines, side by side."""

from dataclasses import asdict
from pathlib import Path

import typer

from kvproxy.commands.output import print_json, print_table, progress_bar


def simulate_fleet(
    trace: Path, engines: int, blocks: str | None, block_size: int | None, prefill_rate: float, as_json: bool
) -> None:
    """Replay a trace by each way and print what came of it."""
    from kvproxy.offline.simulate.fleet import POLICIES, FleetShape, simulate_routing
    from kvproxy.offline.simulate.workload import read_arrivals

    if blocks is not None and not blocks.isdigit():
        raise typer.BadParameter("with --engines, --blocks takes one number: the pool of each engine")
    if prefill_rate <= 0:
        raise typer.BadParameter("--prefill-rate is above 0")
    arrivals, tokens = read_arrivals(trace, block_size)
    shape = FleetShape(engines, int(blocks) if blocks else 5000, tokens, prefill_rate)
    with progress_bar() as progress:
        results = [simulate_routing(arrivals, shape, policy) for policy in progress.track(POLICIES)]
    if as_json:
        print_json({"shape": asdict(shape), "requests": len(arrivals), "results": [asdict(each) for each in results]})
        return
    print_table(
        ("routing", "hit tokens#", "of all#", "computed, most/mean#", "wait p50#", "wait p99#", "refused#"),
        (
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
        ),
    )
