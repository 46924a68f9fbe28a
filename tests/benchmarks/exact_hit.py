"""Rates of exact hits, with and without the journal and encryption, beside a constant response of the same server.

python -m tests.benchmarks.exact_hit [--rounds 5] [--seconds 3]

The load comes from wrk (`apt-get install wrk`). All servers run in processes of their own, and are measured in turn. Each run
opens its connections anew, so that p99 includes the time until they are accepted; mean is the mean time of a request.
"""

import base64
import contextlib
import os
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks.load import Load, wrk
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import cpu_seconds, kvproxy, run_process
from tests.benchmarks.timing import median_ratio

VARIANTS = {
    "exact hit": {},
    "without journal": {"KVPROXY_JOURNAL__ENABLED": "false"},
    "encrypted": {
        "KVPROXY_ENCRYPTION__KEY_ENV": "BENCHMARK_KEY",
        "BENCHMARK_KEY": base64.b64encode(os.urandom(32)).decode(),
    },
}


def main() -> None:
    options = read_options(__doc__, rounds=5, seconds=3.0, connections=[1, 16, 64, 256])
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(run_process())
        targets: dict[str, tuple[str, int | None]] = {"constant response": (upstream, None)}
        for name, variables in VARIANTS.items():
            data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(kvproxy(data, "--upstream", upstream, **variables))
            targets[name] = (server.url, server.process.pid)
        for url, _ in targets.values():
            wrk(url, 4, 1, "same", 0)
        print(
            "| connections | | requests/s | p99 ms | p99 / mean | ratio to exact hits | CPU ms per request |\n"
            "|---|---|---|---|---|---|---|"
        )
        for connections in options.connections:
            loads: dict[str, list[Load]] = {name: [] for name in targets}
            cpu: dict[str, list[float]] = {name: [] for name in targets}
            for _ in range(options.rounds):
                for name, (url, process) in targets.items():
                    before = cpu_seconds(process) if process else 0.0
                    found = wrk(url, connections, options.seconds, "same", 0)
                    loads[name].append(found)
                    cpu[name].append((cpu_seconds(process) - before) / found.count * 1e3 if process else 0.0)
            rates = {name: [each.rate for each in found] for name, found in loads.items()}
            for name, values in rates.items():
                p99 = statistics.median(each.p99 for each in loads[name])
                of_mean = statistics.median(each.p99 * each.rate / connections / 1e3 for each in loads[name])
                print(
                    f"| {connections} | {name} | {statistics.median(values):,.0f} | {p99:.1f} | {of_mean:.1f}"
                    f" | {median_ratio(values, rates['exact hit']):.3f} | {statistics.median(cpu[name]):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
