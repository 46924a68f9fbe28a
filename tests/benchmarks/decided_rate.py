"""The share of new questions that are decided at given rates, of this folder and of other checkouts.

python -m tests.benchmarks.decided_rate STREAM .. [--checkouts FOLDER ...] [--rates 50] [--rounds 3] [--seconds 10] [--words 0]

Questions are sent as by `new_questions`, in rounds: each checkout in turn receives the same questions, with a new proxy. VNNI is
hidden from the proxies (see `hidden_vnni`), unless `--vnni` is given. `--words` adds words to each answer. All checkouts use the
packages of this environment. The load, the upstream, and other work on the machine lower the shares.
"""

import argparse
import asyncio
import contextlib
import math
import random
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvproxy.index.evaluation.stream_evaluation import StreamLine
from tests.benchmarks.before_after import proxy
from tests.benchmarks.hidden_vnni import hidden_vnni
from tests.benchmarks.new_questions import UPSTREAM_SECONDS, Reply, answers_of, decided_share, send_all, shuffled_lines
from tests.benchmarks.servers import answering_app, cpu_seconds, run_process

_ROOT = Path(__file__).resolve().parents[2]


class Round(NamedTuple):
    """Replies to new questions and to exact hits, and the seconds of CPU time of the proxy."""

    replies: list[Reply]
    hits: list[Reply]
    cpu: float


def run_round(
    checkout: Path, lines: list[StreamLine], rate: float, flags: list[str], variables: Mapping[str, str]
) -> Round:
    with proxy(checkout, *flags, **variables) as server:
        before = cpu_seconds(server.process.pid)
        replies, hits = asyncio.run(send_all(server.url, lines, rate))
        return Round(replies, hits, cpu_seconds(server.process.pid) - before)


def row(rounds: list[Round]) -> str:
    replies = [reply for done in rounds for reply in done.replies]
    shares = ", ".join(f"{decided_share(done.replies):.1%}" for done in rounds)
    p50, p99 = np.percentile([1e3 * reply.seconds for done in rounds for reply in done.hits], (50, 99))
    cpu = 1e3 * sum(done.cpu for done in rounds) / len(replies)
    return f"{decided_share(replies):.1%} ({shares}) | {cpu:.1f} ms | {p50:.1f}, {p99:.0f} ms"


def longer_answers(lines: list[StreamLine], words: int) -> dict[str, str]:
    vocabulary = [word for line in lines[:500] for word in line.text.split()]
    return {
        text: " ".join([answer, *random.Random(text).choices(vocabulary, k=words)])
        for text, answer in answers_of(lines).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path, nargs="+")
    parser.add_argument("--checkouts", type=Path, nargs="+", default=[])
    parser.add_argument("--rates", type=float, nargs="+", default=[50.0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--words", type=int, default=0)
    parser.add_argument("--vnni", action="store_true")
    options = parser.parse_args()
    checkouts = [*dict.fromkeys([_ROOT, *(path.resolve() for path in options.checkouts)])]
    print(
        "| stream | rate | version | decided (each round) | CPU per question | exact hits, p50, p99 |\n|---|---|---|---|---|---|"
    )
    for stream, rate in product(options.streams, options.rates):
        lines, count = shuffled_lines(stream), math.ceil(rate * options.seconds)
        rounds: dict[Path, list[Round]] = {checkout: [] for checkout in checkouts}
        with (
            run_process(partial(answering_app, longer_answers(lines, options.words), UPSTREAM_SECONDS)) as upstream,
            contextlib.nullcontext({}) if options.vnni else hidden_vnni() as variables,
        ):
            for number, checkout in product(range(options.rounds), checkouts):
                sent = lines[number * count : (number + 1) * count]
                rounds[checkout].append(run_round(checkout, sent, rate, ["--upstream", upstream], variables))
        for checkout in checkouts:
            print(f"| {stream.stem} | {rate:g} | {checkout.name} | {row(rounds[checkout])} |", flush=True)


if __name__ == "__main__":
    main()
