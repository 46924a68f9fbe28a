"""CPU and accuracy of the live curve of hits by pool size, over conversations of many turns.

python -m tests.benchmarks.live_curve [--requests 2000]
"""

import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kvproxy.analyse.simulate.pool_simulation import lru_hits
from kvproxy.analyse.workload_reader import read_workload
from kvproxy.apis.json import JsonObject
from kvproxy.blocks.reuse_distance import LiveHitCurve
from tests.benchmarks.options import read_options
from tests.journal.sessions.requests import START, Sessions, assistant, request, user

WORDS = "block cache prefix token turn agent tool file test error queue pool chain store hash".split()
SIZES = [2**step for step in range(12, 22)]


class TimedCurve(LiveHitCurve):
    """Sums the CPU seconds of all curves."""

    seconds = 0.0

    def add(self, *args: object) -> None:
        start = time.thread_time()
        super().add(*args)  # type: ignore[arg-type]
        TimedCurve.seconds += time.thread_time() - start


@dataclass(frozen=True, slots=True)
class TextLengths:
    """Words of the system prompt, and ranges of the words of other messages."""

    system: int
    question: tuple[int, int]
    answer: tuple[int, int]


LONG = TextLengths(2000, (10, 600), (5, 60))


def replay(
    folder: Path, num_requests: int, lengths: TextLengths, seed: int = 0
) -> tuple[LiveHitCurve, dict[int, tuple[float, float]]]:
    """Return the curve, and the live and the replayed hit rate of each pool size in tokens."""
    generator = random.Random(seed)

    def text(words: int) -> str:
        return " ".join(generator.choice(WORDS) + str(generator.randrange(1000)) for _ in range(words))

    system: JsonObject = {"role": "system", "content": text(lengths.system)}
    sessions = Sessions(str(folder / "journal.db"))
    active: list[list[JsonObject]] = []
    for number in range(num_requests):
        if len(active) < 20 or generator.random() < 0.05:
            active.append([system])
        if len(active) > 60:
            active.pop(0)
        messages = generator.choice(active)
        messages.append(user(text(generator.randrange(*lengths.question))))
        length = len(json.dumps(messages)) // 4
        # The journal would prune old records.
        exchange = request(list(messages), length, 0, time.time() - START)
        exchange.request_id = f"r{number}"
        sessions.journal.add(exchange)
        if number % 100 == 99:
            sessions.journal.flush()
        messages.append(assistant(text(generator.randrange(*lengths.answer))))
    sessions.journal.flush()
    curve = sessions.journal.reuse_curves()[""]
    sessions.close()
    workload = read_workload(folder / "journal.db")
    hits = lru_hits(workload.chains, [size // workload.block_tokens for size in SIZES])
    tokens = sum(arrival.tokens for arrival in workload.arrivals)
    return curve, {
        size: (curve.hit_rate(size), hit * workload.block_tokens / tokens)
        for size, hit in zip(SIZES, hits, strict=True)
    }


def main() -> None:
    options = read_options(__doc__, requests=2000)
    from kvproxy.journal.sessions import turn_writer

    turn_writer.LiveHitCurve = TimedCurve  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        curve, rates = replay(Path(folder), options.requests, LONG)
        print(f"all CPU of the journal and the replay: {time.process_time() - start:.2f} s")
    print(f"curve: {1e6 * TimedCurve.seconds / curve.requests:.1f} us of CPU a request")
    for size, (live, offline) in rates.items():
        print(f"{size:>9,} tokens  live {live:.4f}  replay {offline:.4f}  {100 * (live - offline):+.2f} points")


if __name__ == "__main__":
    main()
