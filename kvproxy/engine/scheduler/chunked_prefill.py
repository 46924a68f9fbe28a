from kvproxy.engine.scheduler.sequence import SequenceState


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

    def num_new_tokens(self, sequence: SequenceState, start: int, budget: int) -> int:
        """Return how many tokens to compute from position `start` on, at most `budget`. Strict mode may exceed `budget`."""
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
