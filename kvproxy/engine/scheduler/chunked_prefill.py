"""How much of a sequence a step computes, and which tokens' keys and values may be used again.

Ordinarily a step takes what fits, and everything computed is kept. Rounding differs with the number of rows that a matrix
product has, so such a hit can differ from a miss in a logit's last bits. In strict mode a prompt is computed in pieces that begin
and end at multiples of `size`, an answer one token at a time, each alone; and only whole pieces of prompts are kept.
"""

from kvproxy.engine.scheduler.sequence import SequenceState


class ChunkedPrefill:
    """The division of sequences into steps.

    Args:
        block_size: tokens in a block.
        most: most tokens of a sequence in a step.
        size: tokens of a strict piece, a multiple of the block size; None for the ordinary mode.
    """

    def __init__(self, block_size: int, most: int, size: int | None = None) -> None:
        self.exact = size is not None
        self.multiple = size or block_size
        """Hits are whole multiples of so many tokens."""
        self.most = max(most, size or 0)

    def next(self, sequence: SequenceState, start: int, budget: int) -> int:
        """Tokens to compute from `start` on. A strict piece may exceed the budget, since it is computed alone."""
        remaining = sequence.cache.num_tokens - start
        if not self.exact:
            return min(remaining, budget)
        # What was generated before a preemption is computed again as it was the first time.
        left = sequence.num_prompt - start
        return min(self.multiple - start % self.multiple, left) if left > 0 else 1

    def reusable(self, sequence: SequenceState, computed: int) -> int:
        """How many of the first `computed` tokens may be found by others."""
        return min(computed, sequence.num_prompt // self.multiple * self.multiple) if self.exact else computed


def create_chunked_prefill(block_size: int, max_batch_tokens: int, *, strict: bool) -> ChunkedPrefill:
    """Pieces for the settings: strict ones are as long as a batch, in whole blocks."""
    size = max(block_size, max_batch_tokens // block_size * block_size) if strict else None
    return ChunkedPrefill(block_size, max_batch_tokens, size)
