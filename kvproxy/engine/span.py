"""Tokens of one sequence that a step computes."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one sequence to compute next, `start` to `end - 1` of it, with its block table.

    The last `drafts` of the tokens are guesses.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    drafts: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def slots(self, block_size: int) -> list[int]:
        """Where the tokens' keys and values go, block * block_size + offset of each."""
        return [self.blocks[at // block_size] * block_size + at % block_size for at in range(self.start, self.end)]

    def rows(self) -> "list[Span]":
        """The same tokens one by one, each as the last of what it sees."""
        return [Span([token], at, self.blocks) for at, token in enumerate(self.tokens, self.start)]
