from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproxy.engine.scheduler.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive tokens of one sequence in a step.

    Attributes:
        start: position of the first token in the sequence.
        block_tables: the sequence's block table in each layer group. Block 0 replaces freed blocks.
        num_draft_tokens: number of speculative tokens at the end of `tokens`.
    """

    tokens: Sequence[int]
    start: int
    block_tables: Sequence[Sequence[int]]
    num_draft_tokens: int = 0
    lora_id: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def slot_mapping(self, block_size: int, group: int = 0) -> list[int]:
        table = self.block_tables[group]
        return [table[at // block_size] * block_size + at % block_size for at in range(self.start, self.end)]

    def split_tokens(self) -> "list[TokenSpan]":
        return [
            TokenSpan([token], at, self.block_tables, lora_id=self.lora_id)
            for at, token in enumerate(self.tokens, self.start)
        ]


@dataclass(slots=True)
class SchedulerOutput:
    prefills: list[tuple["SequenceState", TokenSpan]] = field(default_factory=list)
    decodes: list[tuple["SequenceState", TokenSpan]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prefills) + len(self.decodes)

    def split(self) -> "Iterator[SchedulerOutput]":
        """Yield one step per sequence. Prompts come first, because other sequences may read the blocks that they fill."""
        yield from (SchedulerOutput(prefills=[item]) for item in self.prefills)
        yield from (SchedulerOutput(decodes=[item]) for item in self.decodes)
