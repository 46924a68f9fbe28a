"""Computes the turns of an agent trace, which has the blocks of each prompt, but no reports of a provider."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvproxy.analyse.simulate.trace_reader import TraceSession
from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.journal.sessions.ledger import ExpectedReuse, lost_tokens
from kvproxy.journal.sessions.session_reader import Turn
from kvproxy.providers.prices import cache_limits
from kvproxy.settings.journal import PriceSettings


@dataclass(frozen=True, slots=True)
class _SentPrompt:
    """A prompt of a trace that no later request of its model has continued; `used` is the arrival of its request."""

    model: str
    blocks: list[object]
    used: float


def trace_turns(trace: TraceSession, first_number: int, prices: Mapping[str, PriceSettings]) -> list[Turn]:
    """Return the turns as a provider that stores each whole prompt would report them. `first_number` numbers the first turn."""
    turns: list[Turn] = []
    sent: list[_SentPrompt] = []
    ended = None
    for place, row in enumerate(trace.requests):
        ids, prompt, time = row.get("hash_ids"), row.get("in"), row.get("t")
        if not isinstance(ids, list) or not isinstance(prompt, int) or not isinstance(time, int | float):
            continue
        pause = None if ended is None else max(0.0, time - ended)
        model = str(row.get("model", ""))
        lifetime = cache_limits(model, prices).lifetime
        common = [(common_prefix_length(earlier.blocks, ids), earlier) for earlier in sent]
        # Models share no prefix.
        shared = max((count for count, earlier in common if earlier.model == model), default=0)
        live = [count for count, earlier in common if earlier.model == model and time - earlier.used <= lifetime]
        longest = max((count for count, _ in common), default=0)
        known, reused, repeated = (
            min(prompt, count * trace.block_size) for count in (shared, max(live, default=0), longest)
        )
        expected = ExpectedReuse(tokens=known, expired=reused < known, repeated=repeated - known)
        lost = lost_tokens(prompt, reused, expected)
        seconds, out = row.get("api_time"), row.get("out")
        duration = float(seconds) if isinstance(seconds, int | float) else 0.0
        number = first_number + place
        turn = Turn(
            number=number,
            session=first_number,
            turn=place + 1,
            parent=number - 1 if turns else None,
            name=trace.name,
            request_id=f"{trace.name} {place + 1}",
            time=float(time),
            seconds=duration,
            pause=pause,
            tenant="",
            model=model,
            upstream=None,
            prompt_tokens=prompt,
            reused_tokens=reused,
            completion_tokens=out if isinstance(out, int) else None,
            written_5m=prompt - reused,
            written_1h=0,
            region="model" if "changed" in lost else None,
            place=None,
            lost=lost,
            cost=None,
        )
        turns.append(turn.with_cost(prices))
        ended = time + duration
        open_ends = [earlier for count, earlier in common if earlier.model != model or count < len(earlier.blocks)]
        sent = [*open_ends, _SentPrompt(model, list[object](ids), time)]
    return turns
