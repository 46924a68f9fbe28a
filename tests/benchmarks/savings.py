"""The seconds that `kvproxy savings` reports for reused prefixes, against a measurement.

The same chats are sent twice in turn: with a prefix that the cache holds, and with a salt of their own, which computes all of it.
The measured saving is the difference of the times until the first chunk. The estimate comes from the journal of these requests.

python -m tests.benchmarks.savings [--upstream URL --model NAME] [--chats N]    # the demo model by default
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson

from kvproxy.journal.reader import Reader
from kvproxy.journal.savings import savings
from tests.ports import free_port
from tests.processes import serve

WORDS = Path(__file__).resolve().parents[2].joinpath("training/demo/handbook.md").read_text().split()


@contextlib.contextmanager
def proxy(arguments: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        more = ["--upstream", arguments.upstream] if arguments.upstream else ["--num-blocks", "4096"]
        port = free_port()
        command = [sys.executable, "-m", "kvproxy.commands", "serve", "--port", str(port), "--data", folder, *more]
        environment = {**os.environ, "KVPROXY_CACHE__ENABLED": "false"}
        with serve(command, port, Path(folder) / "log", env=environment) as serving:
            yield serving.url, Path(folder)


def first_chunk(client: httpx.Client, body: dict[str, object]) -> float:
    """Seconds until the first chunk of a stream."""
    began = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        chunks = answer.iter_bytes()
        next(chunks)
        seconds = time.perf_counter() - began
        for _ in chunks:
            pass
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--chats", type=int, default=60)
    arguments = parser.parse_args()
    draw = random.Random(0)
    with proxy(arguments) as (url, folder), httpx.Client(base_url=url, timeout=600) as client:
        saved = []
        longest = 1_200 if arguments.upstream else 700
        for number in range(arguments.chats):
            words = draw.choices(WORDS, k=draw.randrange(60, longest))
            turns = [{"role": "system", "content": " ".join(words)}]
            body = {"model": arguments.model, "stream": True, "max_tokens": 4, "temperature": 0}
            body["stream_options"] = {"include_usage": True}
            first_chunk(client, {**body, "messages": [*turns, {"role": "user", "content": f"{number} first?"}]})
            # In turn, so that both meet the same load.
            times = {}
            for kind in draw.sample(["cached", "cold"], 2):
                salt = {"cache_salt": f"{draw.getrandbits(60):x}"} if kind == "cold" else {}
                asked = {"role": "user", "content": f"{number} {kind}?"}
                times[kind] = first_chunk(client, {**body, **salt, "messages": [*turns, asked]})
            saved.append(times["cold"] - times["cached"])
        time.sleep(1.5)
        with contextlib.closing(Reader(folder / "journal.db")) as reader:
            rows = savings(reader, "layer", {})
    row = next(each for each in rows if each.name == "prefix")
    measured = sum(saved)
    print(
        orjson.dumps(
            {
                "chats": arguments.chats,
                "measured_seconds": round(measured, 3),
                "estimated_seconds": round(row.seconds, 3),
                "range": [round(row.least_seconds, 3), round(row.most_seconds, 3)],
                "ratio": round(row.seconds / measured, 3),
                "median_saving_ms": round(1000 * statistics.median(saved), 2),
                "reused_tokens": row.reused_tokens,
            }
        ).decode()
    )


if __name__ == "__main__":
    main()
