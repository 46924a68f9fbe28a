"""Reads a trace with its times, for routing."""

import json
from pathlib import Path

from kvproxy.simulate.errors import TraceError
from kvproxy.simulate.fleet import Arrival
from kvproxy.simulate.workload import read_chains


def read_arrivals(path: Path, block_size: int) -> tuple[list[Arrival], int]:
    """Requests in order of time, and the tokens in a block.

    Args:
        path: a Mooncake trace (`timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids`), or JSON lines with
            `tokens` and `timestamp`.
        block_size: for logs of tokens.

    Raises:
        TraceError: a line cannot be read, or has no time.
    """
    chains, block_tokens = read_chains(path, block_size)
    arrivals = []
    with path.open() as lines:
        parsed = [json.loads(line) for line in lines if line.strip()]
    for number, (line, chain) in enumerate(zip(parsed, chains, strict=True), 1):
        try:
            tokens = int(line["input_length"]) if "input_length" in line else len(line["tokens"])
            arrivals.append(Arrival(line["timestamp"] / 1000, chain, tokens, int(line.get("output_length", 0))))
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: routing needs a timestamp on every line ({error!r})") from None
    return sorted(arrivals, key=lambda arrival: arrival.seconds), block_tokens
