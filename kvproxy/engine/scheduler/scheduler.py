"""Plans which tokens of which sequences the next step computes."""

from bisect import insort
from collections.abc import Iterator

from kvproxy.blocks.manager import ComputedBlocks, KVCacheManager
from kvproxy.engine.scheduler.scheduler_output import ChunkedPrefill, SchedulerOutput, TokenSpan
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.engine.tier_connector import TierConnector

PROMPT_COST = 1
OUTPUT_COST = 2
MAX_TENANTS = 10_000
"""Tenants without unfinished requests whose computed tokens are remembered."""


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
        self.waiting.mark_unfinished(sequence)
        self.waiting.add(sequence)

    def fork(self, parent: SequenceState, child: SequenceState) -> None:
        self.manager.fork(parent.cache_request, child.cache_request)
        self.waiting.mark_unfinished(child)
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
        self.waiting.mark_finished(sequence)

    def schedule(self) -> SchedulerOutput:
        """Plan the next step, and allocate its blocks. Its tokens count as computed from now on."""
        output = SchedulerOutput()
        budget = self._max_num_batched_tokens
        for sequence in self._tiers.finish_loads() if self._tiers else ():
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
            max_step_tokens = self._chunked_prefill.max_step_tokens
            if not self.manager.can_fit_full_sequence(sequence.cache_request, computed, max_step_tokens):
                return
            self.waiting.remove(sequence)
            matched = self._tiers.max_matched_tokens(sequence, computed.num_tokens) if self._tiers else 0
            if matched > computed.num_tokens:
                self._start_load(sequence, computed, matched)
            else:
                budget -= self._start_prefill(sequence, computed, budget, output)

    def _schedule_running(self, sequence: SequenceState, budget: int, output: SchedulerOutput) -> int:
        if count := self._schedule_drafts(sequence, budget, output):
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
        if not (self._num_draft_tokens and sequence.num_output_tokens and sequence.num_uncomputed_tokens == 1):
            return 0
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
        assert self._tiers is not None
        is_first_run = sequence.scheduled_time is None
        self._allocate(sequence, computed, end - computed.num_tokens)
        self.loading.append(sequence)
        self._tiers.start_load(sequence, computed.num_tokens, end, count_as_cached=is_first_run)

    def _allocate(self, sequence: SequenceState, computed: ComputedBlocks, num_tokens: int) -> None:
        blocks = self.manager.allocate_slots(sequence.cache_request, num_tokens, computed, delay_cache_blocks=True)
        assert blocks is not None, "can_fit_full_sequence counted too few blocks"
        sequence.mark_scheduled(computed.num_tokens)

    def _add_span(self, sequence: SequenceState, num_tokens: int, output: SchedulerOutput) -> None:
        cache_request = sequence.cache_request
        start = cache_request.num_computed_tokens
        tokens = cache_request.tokens[start : start + num_tokens]
        span = TokenSpan(tokens, start, self.manager.get_block_ids(cache_request.id), lora_id=sequence.lora_id)
        (output.decodes if num_tokens == 1 and start else output.prefills).append((sequence, span))
        cache_request.num_computed_tokens += num_tokens
        # A step writes all keys and values before it reads any.
        cacheable = self._chunked_prefill.num_cacheable_tokens(sequence, cache_request.num_computed_tokens)
        self.manager.cache_blocks(cache_request, cacheable)
        self.waiting.charge(sequence, num_tokens)

    def _preempt(self, sequence: SequenceState) -> None:
        self.running.remove(sequence)
        self.manager.free(sequence.cache_request)
        self.waiting.add(sequence)


class RequestQueue:
    """The waiting sequences: by priority, then by tenant (fewest computed tokens first), then by arrival."""

    def __init__(self) -> None:
        self._queues: dict[str, list[SequenceState]] = {}
        self._service: dict[str, int] = {}
        self._num_live: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __contains__(self, sequence: object) -> bool:
        return any(sequence in queue for queue in self._queues.values())

    def __iter__(self) -> Iterator[SequenceState]:
        # Copies, because the loop may remove sequences.
        queues = {tenant: list(queue) for tenant, queue in self._queues.items()}
        while queues:
            tenant = min(queues, key=lambda name: self._sort_key(name, queues[name][0]))
            yield queues[tenant].pop(0)
            if not queues[tenant]:
                del queues[tenant]

    def _sort_key(self, tenant: str, head: SequenceState) -> tuple[int, int, float]:
        return head.request.queue_priority, self._service.get(tenant, 0), head.arrival_time

    def mark_unfinished(self, sequence: SequenceState) -> None:
        tenant = sequence.request.tenant
        if not self._num_live.get(tenant):
            # A tenant gains no credit while it has no unfinished sequence.
            if not self._num_live:
                self._service.clear()
            least = min((self._service.get(name, 0) for name in self._num_live), default=0)
            self._service[tenant] = max(self._service.get(tenant, 0), least)
        self._num_live[tenant] = self._num_live.get(tenant, 0) + 1

    def mark_finished(self, sequence: SequenceState) -> None:
        tenant = sequence.request.tenant
        self._num_live[tenant] -= 1
        if not self._num_live[tenant]:
            del self._num_live[tenant]
            if len(self._service) > MAX_TENANTS:
                self._service = {name: self._service[name] for name in self._num_live}

    def add(self, sequence: SequenceState) -> None:
        insort(self._queues.setdefault(sequence.request.tenant, []), sequence, key=_order_in_tenant)

    def remove(self, sequence: SequenceState) -> None:
        tenant = sequence.request.tenant
        self._queues[tenant].remove(sequence)
        if not self._queues[tenant]:
            del self._queues[tenant]

    def charge(self, sequence: SequenceState, num_tokens: int) -> None:
        cost = OUTPUT_COST if sequence.num_output_tokens else PROMPT_COST
        self._service[sequence.request.tenant] += cost * num_tokens


def _order_in_tenant(sequence: SequenceState) -> tuple[int, int, float]:
    return sequence.request.queue_priority, sequence.request.tenant_priority, sequence.arrival_time
