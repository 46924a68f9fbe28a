"""Tokens of prompts that a prefix cache reuses, and their price in the provider's count."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from kvproxy.analyse.log_formats.log_format import SummedUsage
from kvproxy.settings.journal import PriceSettings, input_price

Writes: TypeAlias = tuple[float, float]
"""The parts of the computed tokens that are written to the provider's cache for five minutes and for one hour."""


@dataclass(frozen=True, slots=True)
class BilledInput:
    """Tokens of prompts in the provider's count.

    Attributes:
        reused: tokens that its cache reuses, in its steps and from its minimum on.
        written_5m, written_1h: tokens written to its cache, as the same part of the computed tokens as in the log.
    """

    prompt_tokens: int = 0
    reused: int = 0
    written_5m: int = 0
    written_1h: int = 0

    def plus(self, prompt: int, reused: int, writes: Writes) -> "BilledInput":
        short, long = (round(share * max(0, prompt - reused)) for share in writes)
        return BilledInput(
            self.prompt_tokens + prompt, self.reused + reused, self.written_5m + short, self.written_1h + long
        )


@dataclass(frozen=True, slots=True)
class PromptReuse:
    """The number of prompt tokens of a family, and of the tokens that a prefix cache reuses, as the tokenizer counts them.

    Attributes:
        billed: the same in the provider's count; None if neither the log nor the tokenizer has it.
    """

    prompt_tokens: int
    reused: int
    billed: BilledInput | None = None

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.reused

    @property
    def share(self) -> float:
        return self.reused / self.prompt_tokens if self.prompt_tokens else 0.0

    def cost(self, price: PriceSettings) -> float | None:
        billed = self.billed
        if billed is None:
            return None
        return input_price(price, billed.prompt_tokens, billed.reused, billed.written_5m, billed.written_1h)


def writes_of(usage: SummedUsage) -> Writes | None:
    """Return the parts of a prompt's computed tokens that the provider's cache stored; None if the log does not state them."""
    if not usage.prompt_tokens or usage.cached_tokens is None or None in (usage.written_5m, usage.written_1h):
        return None
    computed = usage.prompt_tokens - usage.cached_tokens
    return ((usage.written_5m or 0) / computed, (usage.written_1h or 0) / computed) if computed > 0 else None


def mean_writes(usages: Sequence[SummedUsage]) -> Writes:
    known = [writes for usage in usages if (writes := writes_of(usage)) is not None]
    return (fmean(short for short, _ in known), fmean(long for _, long in known)) if known else (0.0, 0.0)
