"""The seconds that `kvproxy savings` reports for reused prefixes, beside a measurement.

python -m tests.benchmarks.savings [--upstream URL --model NAME] [--chats 60]

Each chat is sent twice in random order: with a cached prefix, and with a salt of its own, so that all of it is computed. The
measured saving is the difference of the times to the first chunk; the estimate comes from the journal of these requests. The
model is the demo model by default. llama.cpp knows no salts: `cache_prompt: false` tells it to compute the whole prompt.
"""

import contextlib
import random
import tempfile
import time
from pathlib import Path

import httpx

from kvproxy.journal.reader import JournalReader
from kvproxy.journal.savings import savings
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import kvproxy

WORDS = Path(__file__).resolve().parents[2].joinpath("training/demo/handbook.md").read_text().split()


def first_chunk(client: httpx.Client, body: dict[str, object]) -> float:
    """Return the seconds to the first chunk of a stream."""
    began = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        chunks = response.iter_bytes()
        next(chunks)
        seconds = time.perf_counter() - began
        for _ in chunks:
            pass
    return seconds


def measured_saving(client: httpx.Client, model: str, chats: int, longest: int, uncached: dict[str, object]) -> float:
    """Send all chats; return the sum of the differences in seconds. `uncached` are fields of requests without reuse."""
    # Another run must not send the same chats: a server with a large cache would still hold them.
    draw, saved = random.Random(), 0.0
    settings = {"model": model, "stream": True, "max_tokens": 4, "temperature": 0}
    settings["stream_options"] = {"include_usage": True}
    for number in range(chats):
        system = {"role": "system", "content": " ".join(draw.choices(WORDS, k=draw.randrange(60, longest)))}

        def send(question: str, **more: object) -> float:
            user = {"role": "user", "content": f"{number} {question}?"}  # noqa: B023
            return first_chunk(client, {**settings, **more, "messages": [system, user]})  # noqa: B023

        send("first")
        cold = {"cache_salt": f"{draw.getrandbits(60):x}", **uncached}
        fields: dict[str, dict[str, object]] = {"cached": {}, "cold": cold}
        seconds = {kind: send(kind, **fields[kind]) for kind in draw.sample(list(fields), 2)}
        saved += seconds["cold"] - seconds["cached"]
    return saved


def main() -> None:
    options = read_options(__doc__, upstream=str, model="demo", chats=60)
    flags: tuple[str, str] = ("--num-blocks", "4096")
    longest, uncached = 700, dict[str, object]()
    if options.upstream:
        flags, longest, uncached = ("--upstream", options.upstream), 1_200, {"cache_prompt": False}
    with tempfile.TemporaryDirectory() as folder:
        with (
            kvproxy(Path(folder), *flags, KVPROXY_CACHE__ENABLED="false") as server,
            httpx.Client(base_url=server.url, timeout=600) as client,
        ):
            saved = measured_saving(client, options.model, options.chats, longest, uncached)
            time.sleep(1.5)  # The journal writes later.
        with contextlib.closing(JournalReader(Path(folder) / "journal.db")) as reader:
            row = next(each for each in savings(reader, "layer", {}) if each.name == "prefix")
    print(
        f"{options.chats} chats, {row.reused_tokens:,} reused tokens: {saved:.2f} s measured, {row.seconds:.2f} s estimated"
        f" ({row.least_seconds:.2f} to {row.most_seconds:.2f}), ratio {row.seconds / saved:.2f}"
    )


if __name__ == "__main__":
    main()
