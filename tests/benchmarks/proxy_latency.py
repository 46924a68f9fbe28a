"""Latency that a proxy adds to misses, and its rate of hits, beside LiteLLM's proxy: exact keys, whole responses and streams.

python -m tests.benchmarks.proxy_latency [--litellm VENV/bin/litellm] [--rounds 5] [--seconds 2]

The upstream responds with a constant at once. All servers are measured in turn.
"""

import contextlib
import statistics
import tempfile
from pathlib import Path

import httpx

from tests.benchmarks.load import PATH, Load, body, load, load_process
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import kvproxy, litellm, run_process
from tests.benchmarks.timing import median_ratio


def show(title: str, results: dict[str, list[Load]]) -> None:
    """Print a row for each server."""

    def added(loads: list[Load]) -> float:
        return statistics.median(own.p50 - base.p50 for own, base in zip(loads, results["direct"], strict=True))

    for name, loads in results.items():
        rate, p50, p99 = (statistics.median(getattr(each, field) for each in loads) for field in ("rate", "p50", "p99"))
        peer, ratios = results.get(name.replace("kvproxy", "LiteLLM")), " | "
        if "kvproxy" in name and peer is not None:
            rates = median_ratio([load.rate for load in loads], [load.rate for load in peer])
            ratios = f"{rates:.1f} | {added(loads) / added(peer):.2f}"
        print(f"| {title} | {name} | {rate:,.0f} | {p50:.2f} | {p99:.2f} | {added(loads):.2f} | {ratios} |", flush=True)


def main() -> None:
    options = read_options(__doc__, litellm=Path, connections=[1, 16, 64, 256], rounds=5, seconds=2.0)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(load_process())
        upstream = stack.enter_context(run_process())
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(kvproxy(data, "--upstream", upstream, "--no-semantic")).url
        targets = {"direct": (upstream, "new"), "kvproxy, misses": (url, "new"), "kvproxy, hits": (url, "same")}
        if options.litellm is not None:
            for name, questions in (("LiteLLM, misses", "new"), ("LiteLLM, hits", "same")):
                peer = litellm(options.litellm, upstream, cache=questions == "same")
                targets[name] = (stack.enter_context(peer).url, questions)
        for url, _ in targets.values():
            for stream in (False, True):
                httpx.post(url + PATH, content=body(stream=stream), timeout=60).raise_for_status()
        print(
            "| body | connections | | requests/s | p50 ms | p99 ms | added p50 ms | rate / LiteLLM | added / LiteLLM |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for stream in (False, True):
            for connections in options.connections:
                results: dict[str, list[Load]] = {name: [] for name in targets}
                for _ in range(options.rounds):
                    for name, (url, questions) in targets.items():
                        arguments = (url, connections, options.seconds, questions, stream)
                        results[name].append(pool.apply(load, arguments))
                show(f"{'stream' if stream else 'whole'} | {connections}", results)


if __name__ == "__main__":
    main()
