"""How many tokens of a sequence one step computes."""

from kvproxy.engine.scheduler.sequence import SequenceState


class ChunkedPrefill:
    """Limits the tokens of a step.

    Rounding depends on the batch size, so a hit can differ
    from a miss in the last bits. In strict mode they are equal: prompts are computed in aligned chunks, output tokens
    one at a time.
    """

    def __init__(self, block_size: int, max_num_batched_tokens: int, *, strict: bool) -> None:
        chunk = max(block_size, max_num_batched_tokens // block_size * block_size)
        self.is_strict = strict
        self.alignment = chunk if strict else block_size
        self.max_step_tokens = max(max_num_batched_tokens, chunk) if strict else max_num_batched_tokens

    def num_new_tokens(self, sequence: SequenceState, start: int, budget: int) -> int:
        """Return the number of tokens to compute. A strict chunk may exceed the budget."""
        remaining = sequence.cache_request.num_tokens - start
        if not self.is_strict:
            return min(remaining, budget)
        # After a preemption, output tokens are recomputed one at a time, as in the first run.
        prompt = sequence.num_prompt_tokens - start
        return min(self.alignment - start % self.alignment, prompt) if prompt > 0 else 1

    def num_cacheable_tokens(self, sequence: SequenceState, num_computed: int) -> int:
        if not self.is_strict:
            return num_computed
        return min(num_computed, sequence.num_prompt_tokens // self.alignment * self.alignment)
