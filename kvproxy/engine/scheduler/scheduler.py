from kvproxy.blocks.manager import ComputedBlocks, KVCacheManager
from kvproxy.engine.kv_connector.tier_connector import TierConnector
from kvproxy.engine.scheduler.chunked_prefill import ChunkedPrefill
from kvproxy.engine.scheduler.request_queue import RequestQueue
from kvproxy.engine.scheduler.scheduler_output import SchedulerOutput, TokenSpan
from kvproxy.engine.scheduler.sequence import SequenceState


class Scheduler:
    """Plans steps: a step's token budget goes to running sequences first, then to chunks of waiting prompts.

    A prompt is looked up in the cache when it is first scheduled, so it can use blocks of concurrent requests.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        chunked_prefill: ChunkedPrefill,
        *,
        tiers: TierConnector | None = None,
        num_draft_tokens: int = 0,
    ) -> None:
        self.manager = manager
        self.waiting = RequestQueue()
        self.loading: list[SequenceState] = []
        self.running: list[SequenceState] = []
        self._tiers = tiers
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._chunked_prefill = chunked_prefill
        self._num_draft_tokens = num_draft_tokens

    @property
    def sequences(self) -> list[SequenceState]:
        return [*self.running, *self.loading, *self.waiting]

    def add(self, sequence: SequenceState) -> None:
        self.waiting.register(sequence)
        self.waiting.add(sequence)

    def fork(self, parent: SequenceState, child: SequenceState) -> None:
        self.manager.fork(parent.cache_request, child.cache_request)
        self.waiting.register(child)
        self.running.append(child)

    def remove(self, sequence: SequenceState) -> None:
        if sequence in self.loading:
            assert self._tiers is not None
            self._tiers.cancel(sequence)
            self.loading.remove(sequence)
            self.manager.free(sequence.cache_request)
        elif sequence in self.running:
            self.running.remove(sequence)
            self.manager.free(sequence.cache_request)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            return
        self.waiting.unregister(sequence)

    def schedule(self) -> SchedulerOutput:
        """Plan the next step, and allocate its blocks. Its tokens count as computed from now on."""
        output = SchedulerOutput()
        budget = self._max_num_batched_tokens
        for sequence in self._tiers.get_finished() if self._tiers else ():
            self.loading.remove(sequence)
            self.running.append(sequence)
        # A stable sort: the youngest sequence of the last priority is preempted first.
        self.running.sort(key=lambda item: item.request.queue_priority)
        order = list(self.running)
        for place, sequence in enumerate(order):
            if budget <= 0 or len(output) == self._max_num_seqs:
                break
            if sequence in self.running:
                # A long prompt leaves one token to each later sequence.
                num_later = min(len(order), self._max_num_seqs) - place - 1
                budget -= self._schedule_running(sequence, max(1, budget - num_later), output)
        # Finish started prompts first: two half-computed prompts could block each other.
        if not any(sequence.num_uncomputed_tokens for sequence in self.running):
            self._schedule_waiting(budget, output)
        return output

    def _schedule_waiting(self, budget: int, output: SchedulerOutput) -> None:
        for sequence in self.waiting:
            if budget <= 0 or len(self.running) + len(self.loading) >= self._max_num_seqs:
                return
            computed = self.manager.get_computed_blocks(sequence.cache_request)
            if self._tiers and self._tiers.is_loading_prefix(sequence, computed.num_tokens):
                continue
            # A prompt that fits only in part would preempt running sequences repeatedly.
            if not self.manager.can_fit_full_sequence(
                sequence.cache_request, computed, self._chunked_prefill.max_step_tokens
            ):
                return
            self.waiting.remove(sequence)
            matched = self._tiers.num_matched_tokens(sequence, computed.num_tokens) if self._tiers else 0
            if matched > computed.num_tokens:
                self._start_load(sequence, computed, matched)
            else:
                budget -= self._start_prefill(sequence, computed, budget, output)

    def _schedule_running(self, sequence: SequenceState, budget: int, output: SchedulerOutput) -> int:
        if self._num_draft_tokens and sequence.num_output_tokens and sequence.num_uncomputed_tokens == 1:
            count = self._schedule_drafts(sequence, budget, output)
            if count:
                return count
        cache_request = sequence.cache_request
        count = self._chunked_prefill.num_new_tokens(sequence, cache_request.num_computed_tokens, budget)
        while self.manager.allocate_slots(cache_request, count, delay_cache_blocks=True) is None:
            # Preempt the last sequence: this step does not contain later sequences yet.
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return 0
        self._add_span(sequence, count, output)
        return count

    def _schedule_drafts(self, sequence: SequenceState, budget: int, output: SchedulerOutput) -> int:
        drafts = sequence.propose_drafts(min(self._num_draft_tokens, budget - 1))
        cache_request, start = sequence.cache_request, sequence.cache_request.num_computed_tokens
        if not drafts or self.manager.allocate_slots(cache_request, 1, num_lookahead_tokens=len(drafts)) is None:
            return 0
        tokens = [*cache_request.tokens[start:], *drafts]
        span = TokenSpan(tokens, start, self.manager.get_block_ids(cache_request.id), len(drafts), sequence.lora_id)
        output.prefills.append((sequence, span))
        cache_request.num_computed_tokens += 1
        self.waiting.charge(sequence, 1)
        return len(tokens)

    def _start_prefill(
        self, sequence: SequenceState, computed: ComputedBlocks, budget: int, output: SchedulerOutput
    ) -> int:
        count = self._chunked_prefill.num_new_tokens(sequence, computed.num_tokens, budget)
        self._allocate(sequence, computed, count)
        sequence.cache_request.num_computed_tokens = computed.num_tokens
        self.running.append(sequence)
        self._add_span(sequence, count, output)
        return count

    def _start_load(self, sequence: SequenceState, computed: ComputedBlocks, end: int) -> None:
        is_first_run = sequence.scheduled_time is None
        self._allocate(sequence, computed, end - computed.num_tokens)
        self.loading.append(sequence)
        assert self._tiers is not None
        self._tiers.start_load(sequence, computed.num_tokens, end, count_as_cached=is_first_run)

    def _allocate(self, sequence: SequenceState, computed: ComputedBlocks, count: int) -> None:
        blocks = self.manager.allocate_slots(sequence.cache_request, count, computed, delay_cache_blocks=True)
        assert blocks is not None, "can_fit_full_sequence counted too few blocks"
        sequence.mark_scheduled(computed.num_tokens)

    def _add_span(self, sequence: SequenceState, count: int, output: SchedulerOutput) -> None:
        cache_request = sequence.cache_request
        start = cache_request.num_computed_tokens
        tokens = cache_request.tokens[start : start + count]
        span = TokenSpan(tokens, start, self.manager.get_block_ids(cache_request.id), lora_id=sequence.lora_id)
        (output.decodes if count == 1 and start else output.prefills).append((sequence, span))
        cache_request.num_computed_tokens += count
        # A step writes all keys and values before it reads any.
        cacheable = self._chunked_prefill.num_cacheable_tokens(sequence, cache_request.num_computed_tokens)
        self.manager.cache_blocks(cache_request, cacheable)
        self.waiting.charge(sequence, count)

    def _preempt(self, sequence: SequenceState) -> None:
        self.running.remove(sequence)
        self.manager.free(sequence.cache_request)
        sequence.cache_request.num_computed_tokens = 0
        self.waiting.add(sequence)
