"""Rates of exact hits, with and without the journal and encryption, and of semantic hits, beside a constant response.

python -m tests.benchmarks.exact_hit [--rounds 5] [--seconds 3]

All servers run with the same HTTP server in processes of their own, and are measured in turn. Each semantic hit has another
wording, so that it is embedded, searched, and decided.
"""

import base64
import contextlib
import os
import statistics
import tempfile
from pathlib import Path

import httpx

from tests.benchmarks.load import PATH, body, load, load_process
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import cpu_seconds, kvproxy, run_process
from tests.benchmarks.timing import median_ratio


def main() -> None:
    options = read_options(__doc__, rounds=5, seconds=3.0, connections=[1, 16, 64])
    variants = {
        "exact hit": {},
        "exact hit, without journal": {"KVPROXY_JOURNAL__ENABLED": "false"},
        "exact hit, encrypted": {
            "KVPROXY_ENCRYPTION__KEY_ENV": "BENCHMARK_KEY",
            "BENCHMARK_KEY": base64.b64encode(os.urandom(32)).decode(),
        },
    }
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(load_process())
        upstream = stack.enter_context(run_process())
        servers = {}
        for name, variables in variants.items():
            data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers[name] = stack.enter_context(
                kvproxy(data, "--upstream", upstream, KVPROXY_CACHE__POLICY="checked", **variables)
            )
            httpx.post(servers[name].url + PATH, content=body()).raise_for_status()
        targets = {name: (server.url, "same", server.process.pid) for name, server in servers.items()}
        targets["semantic hit"] = (servers["exact hit"].url, "reworded", servers["exact hit"].process.pid)
        targets = {"constant response": (upstream, "same", None), **targets}
        print("| connections | | requests/s | ratio to constant | ratio to exact | CPU ms per request |")
        print("|---|---|---|---|---|---|")
        for connections in options.connections:
            rates: dict[str, list[float]] = {name: [] for name in targets}
            cpu: dict[str, list[float]] = {name: [] for name in targets}
            for _ in range(options.rounds):
                for name, (url, questions, process) in targets.items():
                    before = cpu_seconds(process) if process else 0.0
                    found = pool.apply(load, (url, connections, options.seconds, questions))
                    rates[name].append(found.rate)
                    cpu[name].append((cpu_seconds(process) - before) / max(found.count, 1) * 1e3 if process else 0.0)
            for name, values in rates.items():
                ratios = (median_ratio(values, rates[base]) for base in ("constant response", "exact hit"))
                shown = " | ".join(f"{ratio:.3f}" for ratio in ratios)
                print(
                    f"| {connections} | {name} | {statistics.median(values):,.0f} | {shown}"
                    f" | {statistics.median(cpu[name]):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
