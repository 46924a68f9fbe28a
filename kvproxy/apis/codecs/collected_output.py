from dataclasses import dataclass, field

from kvproxy.generation import Delta, FinishReason, TokenLogprob, ToolCall


@dataclass(slots=True)
class CollectedChoice:
    text: str = ""
    reasoning: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    completion_tokens: int = 0
    reasoning_tokens: int = 0


class CollectedOutput:
    """All completions of one prompt, by index.

    Attributes:
        prompt_logprobs: log-probabilities of all prompt tokens except the first; empty if they are not requested.
    """

    def __init__(self) -> None:
        self.choices: dict[int, CollectedChoice] = {}
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def add(self, piece: Delta) -> bool:
        """Add a piece, and return whether it is the first piece of its completion."""
        is_first = piece.index not in self.choices
        if not self.choices:
            self.prompt_tokens, self.cached_tokens = piece.usage.prompt_tokens, piece.usage.cached_tokens
            self.prompt_logprobs = piece.prompt_logprobs
        choice = self.choices.setdefault(piece.index, CollectedChoice())
        choice.text += piece.text
        choice.reasoning += piece.reasoning
        if choice.reasoning and not choice.text:
            choice.reasoning_tokens += len(piece.tokens)
        choice.logprobs += piece.logprobs
        choice.calls += piece.calls
        choice.finish_reason = piece.finish_reason or choice.finish_reason
        choice.completion_tokens = piece.usage.completion_tokens
        return is_first

    @property
    def completion_tokens(self) -> int:
        return sum(choice.completion_tokens for choice in self.choices.values())

    @property
    def reasoning_tokens(self) -> int:
        return sum(choice.reasoning_tokens for choice in self.choices.values())

    @property
    def first_choice(self) -> CollectedChoice:
        return self.choices.get(0) or CollectedChoice()
