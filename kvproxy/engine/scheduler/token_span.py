"""Tokens of one sequence that a step computes."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens of one sequence to compute next, `start` to `end - 1` of it, with its block tables.

    `tables` has a block table for each group of layers; a table may hold block 0 for what its group reaches no more. The last
    `drafts` of the tokens are guesses. `adapter` is the number of the LoRA adapter that computes them, 0 for none.
    """

    tokens: Sequence[int]
    start: int
    tables: Sequence[Sequence[int]]
    drafts: int = 0
    adapter: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def slots(self, block_size: int, group: int = 0) -> list[int]:
        """Where the tokens' keys and values go in a group's layers, block * block_size + offset of each."""
        table = self.tables[group]
        return [table[at // block_size] * block_size + at % block_size for at in range(self.start, self.end)]

    def rows(self) -> "list[TokenSpan]":
        """The same tokens one by one, each as the last of what it sees."""
        return [
            TokenSpan([token], at, self.tables, adapter=self.adapter)
            for at, token in enumerate(self.tokens, self.start)
        ]
