"""Which slot a request goes to, and what is read back from disk before: a function of what the slots and the disk hold."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.upstreams.llama.packed_tokens import Tokens, count, shared


@dataclass(frozen=True, slots=True)
class Held:
    """What a free slot holds.

    Attributes:
        slot: its number.
        tokens: the tokens that it begins with, as far as they are known.
        used: when it was last used; a slot that was never used has the least.
    """

    slot: int
    tokens: Tokens
    used: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a request goes.

    Attributes:
        slot: the slot's number.
        keeps: tokens of the prompt that the slot holds now.
        restore: name of the saved prefix that is read into the slot first; None where the slot's own serves as well.
        reused: tokens of the prompt that will not be computed.
    """

    slot: int
    keeps: int
    restore: str | None
    reused: int


def choose(prompt: Tokens, free: Sequence[Held], saved: Sequence[tuple[str, Tokens]], least: int) -> Plan | None:
    """The slot that shares most with a prompt, or a saved prefix that shares more; None where no slot is free.

    Below `least` tokens, sharing decides nothing: chat templates make all prompts begin alike. Then the request goes to
    an empty slot, or to the one that was used longest ago.

    Args:
        free: slots that no request uses.
        saved: saved prefixes by their names.
        least: fewest tokens that are worth a restore.
    """
    if not free:
        return None
    common = {held.slot: shared(held.tokens, prompt) for held in free}
    oldest = min(free, key=lambda held: (bool(held.tokens), held.used, held.slot))
    best = min(free, key=lambda held: (-common[held.slot], count(held.tokens), held.used, held.slot))
    name, most = max(
        ((name, shared(tokens, prompt)) for name, tokens in saved), key=lambda each: each[1], default=("", 0)
    )
    if most >= common[best.slot] + least:
        return Plan(oldest.slot, common[oldest.slot], name, computed_less(most, prompt))
    chosen = best if common[best.slot] >= least else oldest
    return Plan(chosen.slot, common[chosen.slot], None, computed_less(common[chosen.slot], prompt))


def computed_less(common: int, prompt: Tokens) -> int:
    """Tokens that a server which holds the first `common` of a prompt does not compute: the last one is always computed."""
    return max(0, min(common, count(prompt) - 1))
