"""Measures the errors of sampled hit rates: python -m tests.benchmarks.sampled_rates [--traces N].

It compares `sweep` with and without `exact` on traces of 500,000 blocks: chats, documents, agents, and single blocks.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, count, islice

from kvproxy.analyse.simulate import pool_size_sweep
from kvproxy.analyse.simulate.pool_simulation import ChainRequest
from kvproxy.analyse.simulate.pool_size_sweep import sweep

_SIZES = (1000, 5000, 25_000)
_POLICIES = ("s3fifo", "belady")
NewBlocks = Callable[[int], list[int]]


def _zipf(number: int, exponent: float) -> list[float]:
    return list(accumulate(rank**-exponent for rank in range(1, number + 1)))


def _chats(draw: random.Random, new: NewBlocks) -> Iterator[list[int]]:
    prompts, weights = [new(draw.randint(1, 8)) for _ in range(20)], _zipf(20, 1)
    live: list[list[int]] = []
    while True:
        if not live or draw.random() < 0.15:
            live.append(draw.choices(prompts, cum_weights=weights)[0] + new(draw.randint(1, 4)))
        chat = draw.choice(live[-200:])
        chat += new(draw.randint(1, 5))
        if len(chat) > 80:
            live.remove(chat)
        yield [*chat]


def _documents(draw: random.Random, new: NewBlocks) -> Iterator[list[int]]:
    documents, weights = [new(draw.randint(5, 60)) for _ in range(1500)], _zipf(1500, 0.9)
    while True:
        yield draw.choices(documents, cum_weights=weights)[0] + new(draw.randint(1, 3))


def _agents(draw: random.Random, new: NewBlocks) -> Iterator[list[int]]:
    sessions = [new(20) for _ in range(25)]
    while True:
        at = draw.randrange(25)
        if len(sessions[at]) > 150:
            sessions[at] = sessions[0][:10] + new(10)
        sessions[at] = sessions[at] + new(draw.randint(1, 3))
        yield sessions[at]


def _single_blocks(draw: random.Random, new: NewBlocks) -> Iterator[list[int]]:
    weights = _zipf(20_000, 0.8)
    while True:
        yield draw.choices(range(20_000), cum_weights=weights)


def make_trace(number: int, blocks: int = pool_size_sweep.MIN_SAMPLED) -> list[ChainRequest]:
    """Return a trace of about `blocks` blocks; `number` selects one of four kinds, and its random numbers."""
    ids = count()
    prompts = (_chats, _documents, _agents, _single_blocks)[number % 4](
        random.Random(number), lambda length: list(islice(ids, length))
    )
    trace: list[ChainRequest] = []
    while blocks > 0:
        prompt = next(prompts)
        trace.append(ChainRequest(prompt, max(1, len(prompt) - 1), False))
        blocks -= len(prompt)
    return trace


def sampling_errors(trace: list[ChainRequest], sizes: Sequence[int] = _SIZES) -> dict[str, list[float]]:
    """Return the errors of sampled rates by policy, one for each size."""
    sampled, exact = (sweep(trace, 1, sizes, _POLICIES, exact=is_exact).rates for is_exact in (False, True))
    return {name: [one - other for one, other in zip(sampled[name], exact[name], strict=True)] for name in _POLICIES}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=int, default=12)
    found: dict[str, list[float]] = {policy: [] for policy in _POLICIES}
    for number in range(parser.parse_args().traces):
        for policy, errors in sampling_errors(make_trace(number)).items():
            found[policy] += errors
            print(number, policy, *(f"{100 * error:+.2f}" for error in errors), flush=True)
    for policy, errors in found.items():
        sizes = sorted(100 * abs(error) for error in errors)
        print(f"{policy}: median {sizes[len(sizes) // 2]:.2f}, largest {sizes[-1]:.2f} points of {len(sizes)} rates")


if __name__ == "__main__":
    main()
