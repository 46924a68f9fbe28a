from dataclasses import dataclass

_MIN_PREDICTIONS = 20
_MAX_TOO_HIGH = 0.05  # Blocks may be evicted while a request waits in the engine.


@dataclass(slots=True)
class ReuseStats:
    """Prefix reuse of one engine and model, as the engine reports it and as its mirror predicts it.

    Attributes:
        reports: number of requests for which the engine reported its reuse.
        exact, too_high, too_low: numbers of predictions, by comparison with the report.
        tokens_too_high, tokens_too_low: sums of the differences in tokens.
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
    def is_unreliable(self) -> bool:
        return self.predictions >= _MIN_PREDICTIONS and self.too_high > _MAX_TOO_HIGH * self.predictions
