"""Decides what each step computes: running answers first, then prompts in chunks, under a token budget.

Prompts are matched with the cache when they are planned, not when they arrive, so that requests that come together
share what the first of them computes.
"""

from collections import deque
from dataclasses import dataclass, field

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.engine.batch import Span
from kvproxy.engine.sequence import RunningSequence


@dataclass(slots=True)
class Plan:
    """One step's work, a span for each sequence.

    `sampled` of each list tells which sequences have all their tokens computed by this step, and so get a next one.
    """

    prefills: list[tuple[RunningSequence, Span]] = field(default_factory=list)
    decodes: list[tuple[RunningSequence, Span]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.prefills or self.decodes)


class Scheduler:
    """Waiting and running sequences over one block cache.

    Args:
        manager: the block cache.
        max_batch_tokens: tokens of a step.
        max_sequences: sequences of a step.
        exact_chunks: round hits down to whole chunks of `max_batch_tokens`, so that a hit is computed in the same pieces as
            a miss and its logits are equal bit for bit.
    """

    def __init__(
        self, manager: KVCacheManager, max_batch_tokens: int, max_sequences: int, *, exact_chunks: bool = False
    ) -> None:
        self.manager = manager
        self.waiting: deque[RunningSequence] = deque()
        self.running: list[RunningSequence] = []
        self._max_tokens = max_batch_tokens
        self._max_sequences = max_sequences
        self._exact_chunks = exact_chunks

    def add(self, sequence: RunningSequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def fork(self, parent: RunningSequence, child: RunningSequence) -> None:
        """Let a child run on with its parent's blocks."""
        self.manager.fork(parent.cache, child.cache)
        self.running.append(child)

    def remove(self, sequence: RunningSequence) -> None:
        """Drop a sequence, waiting or running, and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.manager.free(sequence.cache)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def plan(self) -> Plan:
        """The next step's work, with its blocks allocated and each sequence's progress advanced."""
        plan = Plan()
        budget = self._max_tokens
        for sequence in list(self.running):
            if sequence not in self.running or budget == 0:
                continue
            count = self._continue(sequence, budget, plan)
            budget -= count
        while self.waiting and budget > 0 and len(self.running) < self._max_sequences:
            count = self._admit(self.waiting[0], budget, plan)
            if count == 0:
                break
            self.running.append(self.waiting.popleft())
            budget -= count
        return plan

    def _continue(self, sequence: RunningSequence, budget: int, plan: Plan) -> int:
        count = min(sequence.num_remaining, budget)
        while self.manager.allocate_slots(sequence.cache, count) is None:
            youngest = self.running[-1]
            self._preempt(youngest, plan)
            if youngest is sequence:
                return 0
        self._append(sequence, count, plan)
        return count

    def _admit(self, sequence: RunningSequence, budget: int, plan: Plan) -> int:
        cache, manager = sequence.cache, self.manager
        computed = manager.get_computed_blocks(cache)
        if self._exact_chunks:
            computed = manager.shorten(computed, self._max_tokens)
        count = min(cache.num_tokens - computed.num_tokens, budget)
        # A prompt that fits only in part would take blocks from the running ones and be preempted half-way.
        whole = -(-cache.num_tokens // manager.block_size) - len(computed.blocks)
        idle = sum(1 for block in computed.blocks if block.ref_count == 0)
        if whole + idle > manager.pool.num_free or manager.allocate_slots(cache, count, computed) is None:
            return 0
        cache.num_computed_tokens = computed.num_tokens
        if not sequence.admitted:
            sequence.admitted = True
            sequence.cached_tokens = computed.num_tokens
        self._append(sequence, count, plan)
        return count

    def _append(self, sequence: RunningSequence, count: int, plan: Plan) -> None:
        cache = sequence.cache
        start = cache.num_computed_tokens
        span = Span(cache.tokens[start : start + count], start, self.manager.block_ids(cache.id))
        (plan.decodes if count == 1 and start else plan.prefills).append((sequence, span))
        cache.num_computed_tokens += count

    def _preempt(self, sequence: RunningSequence, plan: Plan) -> None:
        """Free the youngest sequence; it starts again from what is still cached when there is room."""
        for planned in (plan.prefills, plan.decodes):
            planned[:] = [item for item in planned if item[0] is not sequence]
        self.running.remove(sequence)
        self.manager.free(sequence.cache)
        sequence.cache.num_computed_tokens = 0
        self.waiting.appendleft(sequence)
