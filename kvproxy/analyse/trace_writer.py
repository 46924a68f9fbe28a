"""Writes prompts as traces of Mooncake and WEKA, without texts, names, models, and dates."""

from collections.abc import Iterator, Sequence

from kvproxy.analyse.simulate.pool_simulation import TraceRequest
from kvproxy.analyse.simulate.trace_reader import Workload
from kvproxy.apis.json import JsonObject, dumps

_MILLISECONDS = 1000


def mooncake_lines(workload: Workload) -> Iterator[bytes]:
    """Yield a line per prompt. Times are milliseconds after the first prompt, and ids count blocks by first use."""
    for arrival, ids in _numbered_blocks(workload.arrivals):
        line = {
            "timestamp": round(_MILLISECONDS * (arrival.seconds - workload.arrivals[0].seconds)),
            "input_length": arrival.tokens,
            "output_length": arrival.output,
            "hash_ids": ids,
            "block_size": workload.block_tokens,
        }
        yield dumps(line) + b"\n"


def weka_trace(workload: Workload) -> bytes:
    """Return one trace, whose sub-agents are the sessions, so that sessions share ids. Times are in seconds."""
    sessions: dict[int | None, list[JsonObject]] = {}
    starts: dict[int | None, float] = {}
    for arrival, ids in _numbered_blocks(workload.arrivals):
        start = starts.setdefault(arrival.session, arrival.seconds)
        request: JsonObject = {"t": round(arrival.seconds - start, 6), "type": "n", "model": "model"}
        request |= {"in": arrival.tokens, "out": arrival.output, "hash_ids": list(ids)}
        sessions.setdefault(arrival.session, []).append(request)
    first = min(starts.values(), default=0.0)
    agents: list[JsonObject] = [
        {
            "t": round(starts[session] - first, 6),
            "type": "subagent",
            "agent_id": f"agent_{number:03}",
            "requests": list(requests),
        }
        for number, (session, requests) in enumerate(sessions.items(), 1)
    ]
    head = {"id": "journal", "models": ["model"], "block_size": workload.block_tokens, "hash_id_scope": "local"}
    return dumps({**head, "requests": agents}) + b"\n"


def _numbered_blocks(arrivals: Sequence[TraceRequest]) -> Iterator[tuple[TraceRequest, list[int]]]:
    """Yield each prompt with its block ids; an incomplete last block has an id that no other prompt has."""
    numbers: dict[int, int] = {}
    count = 0
    for arrival in arrivals:
        ids = []
        for block in arrival.chain.blocks:
            if block not in numbers:
                numbers[block] = count
                count += 1
            ids.append(numbers[block])
        if arrival.chain.partial:
            ids.append(count)
            count += 1
        yield arrival, ids
