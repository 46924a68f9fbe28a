"""What proxies cost: an upstream that answers a constant at once, asked directly, through kvproxy, and through a peer, in turn.

The peer is LiteLLM, or kvproxy as another checkout has it:

python -m tests.benchmarks.proxy_latency --litellm VENV/bin/litellm
python -m tests.benchmarks.proxy_latency --against ../kvproxy-before
python -m tests.benchmarks.proxy_latency --memory 1000000
"""

import argparse
import contextlib
import multiprocessing
import statistics
import tempfile
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path

import httpx

from tests.benchmarks.proxy_load import PATH, Load, body, load
from tests.benchmarks.proxy_servers import kvproxy, litellm, resident, upstream

Targets = dict[str, tuple[str, bool]]
"""Name -> URL, and whether every request is to hit."""


@contextlib.contextmanager
def targets(litellm_command: Path | None, checkout: Path | None) -> Iterator[Targets]:
    """Everything that is compared, running."""
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(upstream())
        data = stack.enter_context(tempfile.TemporaryDirectory())
        url, _ = stack.enter_context(kvproxy(direct, Path(data)))
        found = {"direct": (direct, False), "kvproxy miss": (url, False), "kvproxy hit": (url, True)}
        if checkout is not None:
            other = stack.enter_context(tempfile.TemporaryDirectory())
            before, _ = stack.enter_context(kvproxy(direct, Path(other), checkout.resolve()))
            found |= {"peer miss": (before, False), "peer hit": (before, True)}
        elif litellm_command is None:
            print("There is no peer: name LiteLLM's command with --litellm, or a checkout with --against\n")
        else:
            for name, cache in (("peer miss", False), ("peer hit", True)):
                found[name] = (stack.enter_context(litellm(litellm_command, direct, Path(data), cache=cache)), cache)
        for target, hit in found.values():
            for stream in (False, True):
                # What is to hit is stored with this; what is not to hit has what it loads late behind it.
                question = None if hit else "the first"
                httpx.post(target + PATH, content=body(stream, question), timeout=60).raise_for_status()
        yield found


def compare(pool: Pool, chosen: Targets, connections: int, stream: bool, rounds: int, seconds: float) -> None:
    """Print a row for each target."""
    seen: dict[str, list[Load]] = {name: [] for name in chosen}
    for _ in range(rounds):
        for name, (url, hit) in chosen.items():
            seen[name].append(pool.apply(load, (url, connections, stream, hit, seconds)))
    for name, loads in seen.items():
        peer = seen.get(name.replace("kvproxy", "peer"))
        _row(f"{'stream' if stream else 'whole'} | {connections} | {name}", loads, seen["direct"], peer)


def _row(name: str, loads: list[Load], base: list[Load], peer: list[Load] | None) -> None:
    rate = statistics.median(each.rate for each in loads)
    p50, p99 = (statistics.median(each.quantile(share) for each in loads) * 1e3 for share in (0.5, 0.99))
    added = [
        statistics.median(own.quantile(q) - other.quantile(q) for own, other in zip(loads, base, strict=True)) * 1e3
        for q in (0.5, 0.99)
    ]
    compared = "-"
    if peer is not None and peer is not loads:
        compared = f"{statistics.median(own.rate / other.rate for own, other in zip(loads, peer, strict=True)):.1f}"
    print(f"| {name} | {rate:.0f} | {p50:.2f} | {p99:.2f} | {added[0]:.2f} | {added[1]:.2f} | {compared} |", flush=True)


def memory(pool: Pool, requests: int, connections: int) -> None:
    """Print kvproxy's resident memory while it answers very many requests: misses, hits, streams and not."""
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(upstream())
        data = stack.enter_context(tempfile.TemporaryDirectory())
        url, process = stack.enter_context(kvproxy(direct, Path(data)))
        done, next_print = 0, 0
        print("| requests | resident MiB |\n|---|---|")
        while done < requests:
            if done >= next_print:
                print(f"| {done} | {resident(process) / 2**20:.1f} |", flush=True)
                next_print += max(1, requests // 20)
            for stream, hit in ((False, False), (False, True), (True, False), (True, True)):
                seen = pool.apply(load, (url, connections, stream, hit, 2.0))
                done += len(seen.seconds)
        print(f"| {done} | {resident(process) / 2**20:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", type=Path, help="the command of a LiteLLM proxy in an environment of its own")
    parser.add_argument("--against", type=Path, help="another checkout of kvproxy, to be the peer")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    parser.add_argument("--memory", type=int, metavar="REQUESTS", help="watch memory instead")
    chosen = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        if chosen.memory:
            memory(pool, chosen.memory, chosen.connections[-1] if len(chosen.connections) == 1 else 16)
            return
        with targets(chosen.litellm, chosen.against) as found:
            print("| body | connections | | requests/s | p50 ms | p99 ms | added p50 | added p99 | rate / peer |")
            print("|---|---|---|---|---|---|---|---|---|")
            for stream in (False, True):
                for connections in chosen.connections:
                    compare(pool, found, connections, stream, chosen.rounds, chosen.seconds)


if __name__ == "__main__":
    main()
