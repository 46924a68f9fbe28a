"""The plan of one step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproxy.engine.scheduler.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive tokens of one sequence in a step."""

    tokens: Sequence[int]
    start: int  # position of the first token in the sequence
    block_tables: Sequence[Sequence[int]]  # one per layer group; block 0 replaces freed blocks
    num_draft_tokens: int = 0  # speculative tokens at the end of `tokens`
    lora_id: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def slot_mapping(self, block_size: int, group: int = 0) -> list[int]:
        table = self.block_tables[group]
        return [table[at // block_size] * block_size + at % block_size for at in range(self.start, self.end)]

    def split_tokens(self) -> "list[TokenSpan]":
        positions = enumerate(self.tokens, self.start)
        return [TokenSpan([token], at, self.block_tables, lora_id=self.lora_id) for at, token in positions]


@dataclass(slots=True)
class SchedulerOutput:
    prefills: list[tuple["SequenceState", TokenSpan]] = field(default_factory=list)
    decodes: list[tuple["SequenceState", TokenSpan]] = field(default_factory=list)

    @property
    def sequences_and_spans(self) -> list[tuple["SequenceState", TokenSpan]]:
        return self.prefills + self.decodes

    def __len__(self) -> int:
        return len(self.prefills) + len(self.decodes)

    def split_by_sequence(self) -> "Iterator[SchedulerOutput]":
        """Yield one step per sequence. Prompts come first, because other sequences may read the blocks that they fill."""
        yield from (SchedulerOutput(prefills=[item]) for item in self.prefills)
        yield from (SchedulerOutput(decodes=[item]) for item in self.decodes)


class ChunkedPrefill:
    """Divides prompts into the chunks that steps compute.

    Rounding depends on the number of tokens in a chunk, so a prefix hit may change the last bits of a result. Strict
    mode (the setting `batch_invariant`) prevents it: every chunk starts at a multiple of `alignment`, and output tokens
    are computed one at a time.
    """

    def __init__(self, block_size: int, max_num_batched_tokens: int, *, strict: bool) -> None:
        chunk = max(block_size, max_num_batched_tokens // block_size * block_size)
        self.is_strict = strict
        self.alignment = chunk if strict else block_size
        self.max_step_tokens = max(max_num_batched_tokens, chunk) if strict else max_num_batched_tokens

    def num_new_tokens(self, sequence: "SequenceState", start: int, budget: int) -> int:
        """Return how many tokens to compute from position `start` on, at most `budget`. Strict mode may exceed `budget`."""
        remaining = sequence.cache_request.num_tokens - start
        if not self.is_strict:
            return min(remaining, budget)
        # After a preemption, output tokens are recomputed one at a time, as in the first run.
        prompt = sequence.num_prompt_tokens - start
        return min(self.alignment - start % self.alignment, prompt) if prompt > 0 else 1

    def num_cacheable_tokens(self, sequence: "SequenceState", num_computed: int) -> int:
        if not self.is_strict:
            return num_computed
        return min(num_computed, sequence.num_prompt_tokens // self.alignment * self.alignment)
