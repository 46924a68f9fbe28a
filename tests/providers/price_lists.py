"""Prices of paid APIs as the providers publish them, in US dollars per million tokens, and the bill of a request.

Written from the providers' pages in October and November 2026, independently of the package `genai-prices`: a bill by this list
grades the money that kvproxy reports.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone

MILLION = 1_000_000
_BEIJING = timezone(timedelta(hours=8))
_SATURDAY = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices of uncached, read, and written prompt tokens, and of output. Without a price of writes, they cost nothing extra."""

    uncached: float
    read: float
    output: float
    written_5m: float | None = None
    written_1h: float | None = None

    def scaled(self, input_factor: float, output_factor: float) -> "Rates":
        def scale(price: float | None) -> float | None:
            return None if price is None else price * input_factor

        short, long = scale(self.written_5m), scale(self.written_1h)
        return Rates(self.uncached * input_factor, self.read * input_factor, self.output * output_factor, short, long)


@dataclass(frozen=True, slots=True)
class Listed:
    """The price of a model.

    Attributes:
        changes: earlier prices with the time of their end, in order.
        long_prompts: the most prompt tokens of the normal price, and the price of longer prompts.
        peak: the price in DeepSeek's peak hours: 01:00 to 04:00 and 06:00 to 10:00 UTC, except on weekends in Beijing.
        tiers: multiples of the price by service tier.
    """

    rates: Rates
    changes: Sequence[tuple[datetime, Rates]] = ()
    long_prompts: tuple[int, Rates] | None = None
    peak: Rates | None = None
    tiers: Mapping[str, float] = field(default_factory=dict)

    def at(self, moment: datetime, prompt_tokens: int) -> Rates:
        for end, rates in self.changes:
            if moment < end:
                return rates
        if self.long_prompts is not None and prompt_tokens > self.long_prompts[0]:
            return self.long_prompts[1]
        if self.peak is not None and _is_peak(moment):
            return self.peak
        return self.rates


def _is_peak(moment: datetime) -> bool:
    return (1 <= moment.hour < 4 or 6 <= moment.hour < 10) and moment.astimezone(_BEIJING).weekday() < _SATURDAY


def _claude(uncached: float, output: float, read: float = 0.1) -> Rates:
    return Rates(uncached, uncached * read, output, uncached * 1.25, uncached * 2)


def _openai(uncached: float, output: float, read: float = 0.1) -> Rates:
    return Rates(uncached, uncached * read, output, uncached * 1.25)


_HAIKU, _SOL_56, _SOL_61 = _claude(0.1, 0.5), _openai(4, 20), _openai(2, 10, 0.05)
_GEMINI_25, _GEMINI_31, _GROK_45 = Rates(1.25, 0.125, 10), Rates(2, 0.2, 12), Rates(2, 0.3, 6)
_FLASH, _V4_PRO = Rates(0.15, 0.003, 0.6), Rates(0.66, 0.022, 1.98)
_OCTOBER = datetime(2026, 10, 18, tzinfo=UTC)

PRICES: Mapping[str, Mapping[str, Listed]] = {
    "anthropic": {
        "claude-opus-5": Listed(_claude(5, 25), tiers={"batch": 0.5, "fast": 2}),
        "claude-opus-5-5": Listed(_claude(4, 20, 0.05), tiers={"batch": 0.5}),
        "claude-fable-5-1": Listed(_claude(10, 50, 0.025)),
        "claude-sonnet-5-5": Listed(_claude(2, 10, 0.05)),
        "claude-haiku-4-5-20251001": Listed(_claude(1, 5)),
        "claude-haiku-5-5": Listed(_HAIKU, long_prompts=(100_000, _HAIKU.scaled(5, 5))),
    },
    "bedrock": {"us.anthropic.claude-opus-4-5-20251101-v1:0": Listed(_claude(5.5, 27.5))},
    "vertex": {"claude-opus-4-5@20251101": Listed(_claude(5, 25))},
    "openai": {
        "gpt-5.6-sol": Listed(
            _SOL_56, long_prompts=(272_000, _SOL_56.scaled(2, 1.5)), tiers={"flex": 0.5, "priority": 2}
        ),
        "gpt-6.1-sol": Listed(_SOL_61, long_prompts=(272_000, _SOL_61.scaled(2, 1.5))),
        "gpt-5.1": Listed(Rates(1.25, 0.125, 10), tiers={"flex": 0.5, "priority": 2}),
        "gpt-4o": Listed(Rates(2.5, 1.25, 10), tiers={"priority": 1.7}),
    },
    "google": {
        "gemini-2.5-pro": Listed(_GEMINI_25, long_prompts=(200_000, Rates(2.5, 0.25, 15))),
        "gemini-3.1-pro-preview": Listed(_GEMINI_31, long_prompts=(200_000, Rates(4, 0.4, 18))),
        "gemini-2.5-flash": Listed(Rates(0.3, 0.03, 2.5)),
    },
    "deepseek": {
        "deepseek-flash": Listed(_FLASH, peak=_FLASH.scaled(2, 2)),
        "deepseek-v4-pro": Listed(_V4_PRO, peak=_V4_PRO.scaled(2, 2)),
    },
    "x-ai": {
        "grok-4.5": Listed(_GROK_45, long_prompts=(200_000, _GROK_45.scaled(2, 2))),
        "grok-4-0709": Listed(Rates(3, 0.75, 15)),
    },
    "mistral": {
        "mistral-large-2512": Listed(Rates(0.5, 0.05, 1.5)),
        "mistral-medium-latest": Listed(Rates(1.5, 0.15, 7.5)),
    },
}
"""By provider and model."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request. The prompt is the sum of all but `output`."""

    uncached: int
    read: int
    written_5m: int
    written_1h: int
    output: int

    @property
    def prompt(self) -> int:
        return self.uncached + self.read + self.written_5m + self.written_1h


def bill(
    provider: str, model: str, moment: datetime, usage: Usage, service_tier: str | None = None
) -> tuple[float, float]:
    """Return the price of a request, and its price without a prompt cache."""
    rates = PRICES[provider][model].at(moment, usage.prompt)
    if service_tier is not None:
        factor = PRICES[provider][model].tiers[service_tier]
        rates = rates.scaled(factor, factor)
    short, long = (rates.uncached if each is None else each for each in (rates.written_5m, rates.written_1h))
    output = usage.output * rates.output
    paid = (
        usage.uncached * rates.uncached + usage.read * rates.read + usage.written_5m * short + usage.written_1h * long
    )
    return (paid + output) / MILLION, (usage.prompt * rates.uncached + output) / MILLION
