"""What an upstream says that it reused of its prompts, and how far that is from what its mirror predicted."""

from dataclasses import dataclass

_FEWEST = 20
"""Predictions before anything is said about them."""
_MOST_WRONG = 0.05
"""Share of the predictions that may promise too much: a request that waits may find less than there was when it was sent."""


@dataclass(slots=True)
class ReuseFigures:
    """Reports of one upstream about one model.

    Attributes:
        reports: answers that told what was reused.
        prompt_tokens, cached_tokens: their prompts' tokens, and how many of them were reused.
        predictions: reports whose reuse had been predicted.
        exact: predictions that were equal to the report.
        too_high, too_low: predictions that promised more than was reused, and less.
        tokens_too_high, tokens_too_low: by how many tokens in all.
    """

    reports: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predictions: int = 0
    exact: int = 0
    too_high: int = 0
    too_low: int = 0
    tokens_too_high: int = 0
    tokens_too_low: int = 0

    def add(self, prompt_tokens: int, cached_tokens: int, predicted: int | None) -> None:
        """Take one report."""
        self.reports += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        if predicted is None:
            return
        self.predictions += 1
        self.exact += predicted == cached_tokens
        self.too_high += predicted > cached_tokens
        self.too_low += predicted < cached_tokens
        self.tokens_too_high += max(0, predicted - cached_tokens)
        self.tokens_too_low += max(0, cached_tokens - predicted)

    @property
    def errs(self) -> bool:
        """Whether the mirror promises what is not there, more often than requests that wait can explain."""
        return self.predictions >= _FEWEST and self.too_high > _MOST_WRONG * self.predictions
