"""What the engine said so far, collected from its pieces."""

from dataclasses import dataclass, field

from kvproxy.generation import Delta, FinishReason, TokenLogprob, ToolCall


@dataclass(slots=True)
class CollectedChoice:
    """One answer to a prompt."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    completion_tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)


class CollectedOutput:
    """All answers to one prompt.

    Attributes:
        choices: by index.
        prompt_tokens: length of the prompt.
        cached_tokens: how many of them were not computed.
        prompt_logprobs: scores of the prompt's tokens from the second on, where they were asked for.
    """

    def __init__(self) -> None:
        self.choices: dict[int, CollectedChoice] = {}
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def add(self, piece: Delta) -> bool:
        """Take a piece; whether its answer begins with it."""
        begins = piece.index not in self.choices
        if not self.choices:
            self.prompt_tokens, self.cached_tokens = piece.usage.prompt_tokens, piece.usage.cached_tokens
            self.prompt_logprobs = piece.prompt_logprobs
        choice = self.choices.setdefault(piece.index, CollectedChoice())
        choice.texts.append(piece.text)
        choice.logprobs += piece.logprobs
        choice.calls += piece.calls
        choice.finish_reason = piece.finish_reason or choice.finish_reason
        choice.completion_tokens = piece.usage.completion_tokens
        return begins

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers together."""
        return sum(choice.completion_tokens for choice in self.choices.values())

    @property
    def first(self) -> CollectedChoice:
        """The answer where there is only one."""
        return self.choices.get(0) or CollectedChoice()
