"""Decides what each step computes: running answers first, then prompts in chunks, under a token budget.

Prompts are matched with the cache when they are planned, not when they arrive, so that requests that come together
share what the first of them computes. What a tier may hold beyond the pool is loaded first, while the others go on.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvproxy.blocks.manager import ComputedBlocks, KVCacheManager
from kvproxy.engine.kv_connector.tier_connector import TierConnector
from kvproxy.engine.scheduler.chunked_prefill import ChunkedPrefill
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.engine.scheduler.token_span import TokenSpan

PROMPT_COST = 1
ANSWER_COST = 2


class RequestQueue:
    """The waiting queue: by priority, then by the tenant that was served least, then by arrival.

    It records the cost of the tokens that each tenant was served.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[SequenceState]] = {}
        self._served: dict[str, int] = {}
        self._live: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __contains__(self, sequence: object) -> bool:
        return any(sequence in line for line in self._lines.values())

    def __iter__(self) -> Iterator[SequenceState]:
        """In the order of admission; tokens charged meanwhile count, and what was yielded may be removed."""
        lines = {tenant: list(line) for tenant, line in self._lines.items()}
        while lines:
            tenant = min(lines, key=lambda name: self._rank(name, lines[name][0]))
            yield lines[tenant].pop(0)
            if not lines[tenant]:
                del lines[tenant]

    def _rank(self, tenant: str, head: SequenceState) -> tuple[int, int, int]:
        return head.source.queue_priority, self._served.get(tenant, 0), self._number(head)

    def _number(self, sequence: SequenceState) -> int:
        return self._numbers[sequence.cache.id]

    def enter(self, sequence: SequenceState) -> None:
        """A new sequence, which will run and in the end `leave`; it waits unless it is a fork."""
        tenant = sequence.source.tenant
        if not self._live.get(tenant):
            if not self._live:
                self._served.clear()
            least = min((self._served.get(name, 0) for name in self._live), default=0)
            self._served[tenant] = max(self._served.get(tenant, 0), least)
        self._live[tenant] = self._live.get(tenant, 0) + 1
        self._numbers[sequence.cache.id] = self._next
        self._next += 1

    def leave(self, sequence: SequenceState) -> None:
        """A sequence is complete or cancelled."""
        tenant = sequence.source.tenant
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
        del self._numbers[sequence.cache.id]

    def append(self, sequence: SequenceState) -> None:
        """Let a sequence that entered wait; one that was preempted is in front of those that came after it."""
        line = self._lines.setdefault(sequence.source.tenant, [])
        insort(
            line, sequence, key=lambda each: (each.source.queue_priority, each.source.own_priority, self._number(each))
        )

    def remove(self, sequence: SequenceState) -> None:
        """It waits no more."""
        tenant = sequence.source.tenant
        self._lines[tenant].remove(sequence)
        if not self._lines[tenant]:
            del self._lines[tenant]

    def charge(self, sequence: SequenceState, tokens: int) -> None:
        """Count tokens that are computed for a sequence."""
        cost = ANSWER_COST if sequence.num_generated else PROMPT_COST
        self._served[sequence.source.tenant] += cost * tokens


@dataclass(slots=True)
class SchedulerOutput:
    """One step's work, a span for each sequence.

    `sampled` of each list tells which sequences have all their tokens computed by this step, and so get a next one.
    """

    prefills: list[tuple[SequenceState, TokenSpan]] = field(default_factory=list)
    decodes: list[tuple[SequenceState, TokenSpan]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prefills) + len(self.decodes)

    def alone(self) -> "Iterator[SchedulerOutput]":
        """The same work, one sequence after the other, in the order in which they build on each other."""
        yield from (SchedulerOutput(prefills=[each]) for each in self.prefills)
        yield from (SchedulerOutput(decodes=[each]) for each in self.decodes)


class Scheduler:
    """Waiting and running sequences over one block cache.

    Args:
        manager: the block cache.
        max_batch_tokens: tokens of a step.
        max_sequences: sequences of a step.
        pieces: how sequences are divided over steps.
        tiers: what lies beyond the pool.
        speculate: most guesses computed with each generated token.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        max_batch_tokens: int,
        max_sequences: int,
        pieces: ChunkedPrefill,
        *,
        tiers: TierConnector | None = None,
        speculate: int = 0,
    ) -> None:
        self.manager = manager
        self.loading: list[SequenceState] = []
        self._tiers = tiers
        self.waiting = RequestQueue()
        self.running: list[SequenceState] = []
        self._max_tokens = max_batch_tokens
        self._max_sequences = max_sequences
        self._pieces = pieces
        self._speculate = speculate

    def add(self, sequence: SequenceState) -> None:
        """Queue a new sequence."""
        self.waiting.enter(sequence)
        self.waiting.append(sequence)

    def fork(self, parent: SequenceState, child: SequenceState) -> None:
        """Let a child run on with its parent's blocks."""
        self.manager.fork(parent.cache, child.cache)
        self.waiting.enter(child)
        self.running.append(child)

    def remove(self, sequence: SequenceState) -> None:
        """Drop a sequence, waiting, loading or running, and free its blocks."""
        if sequence in self.loading:
            assert self._tiers is not None
            self._tiers.cancel(sequence)
            self.loading.remove(sequence)
            self.manager.free(sequence.cache)
        elif sequence in self.running:
            self.running.remove(sequence)
            self.manager.free(sequence.cache)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            return
        self.waiting.leave(sequence)

    def plan(self) -> SchedulerOutput:
        """The next step's work, with its blocks allocated and each sequence's progress advanced."""
        plan = SchedulerOutput()
        budget = self._max_tokens
        self._take_loaded()
        # Stable: within a priority the oldest stay first, and the youngest gives way when blocks run out.
        self.running.sort(key=lambda each: each.source.queue_priority)
        order = list(self.running)
        for place, sequence in enumerate(order):
            if budget <= 0 or len(plan) == self._max_sequences:
                break
            if sequence in self.running:
                # A long prompt leaves a token to each of those behind it, so that it does not hold up their answers.
                behind = min(len(order), self._max_sequences) - place - 1
                budget -= self._continue(sequence, max(1, budget - behind), plan)
        # What is begun comes first: two prompts by halves would take the blocks that one of them needs.
        if not any(sequence.num_remaining for sequence in self.running):
            self._admit_waiting(budget, plan)
        return plan

    def _take_loaded(self) -> None:
        for sequence in self._tiers.finished() if self._tiers else ():
            self.loading.remove(sequence)
            self.running.append(sequence)

    def _admit_waiting(self, budget: int, plan: SchedulerOutput) -> None:
        for sequence in self.waiting:
            if budget <= 0 or len(self.running) + len(self.loading) >= self._max_sequences:
                return
            computed = self.manager.get_computed_blocks(sequence.cache)
            if self._tiers and self._tiers.is_coming(sequence, computed.num_tokens):
                continue
            # A prompt that fits in part would take blocks from the running ones to no end.
            if not self.manager.can_fit_full_sequence(sequence.cache, computed, self._pieces.most):
                return
            self.waiting.remove(sequence)
            reach = self._tiers.reach(sequence, computed.num_tokens) if self._tiers else 0
            if reach > computed.num_tokens:
                self._load(sequence, computed, reach)
            else:
                budget -= self._admit(sequence, computed, budget, plan)

    def _continue(self, sequence: SequenceState, budget: int, plan: SchedulerOutput) -> int:
        if self._speculate and sequence.num_generated and sequence.num_remaining == 1:
            count = self._continue_guessing(sequence, budget, plan)
            if count:
                return count
        count = self._pieces.next(sequence, sequence.cache.num_computed_tokens, budget)
        while self.manager.allocate_slots(sequence.cache, count, delay_cache_blocks=True) is None:
            # Never one that this step has planned already: its blocks are named, and would stay so with nothing in them.
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return 0
        self._append(sequence, count, plan)
        return count

    def _continue_guessing(self, sequence: SequenceState, budget: int, plan: SchedulerOutput) -> int:
        """Plan a sequence's last token with guesses behind it; 0 where there are none, or no blocks for them."""
        guesses = sequence.guess(min(self._speculate, budget - 1))
        cache, start = sequence.cache, sequence.cache.num_computed_tokens
        if not guesses or self.manager.allocate_slots(cache, 1, num_lookahead_tokens=len(guesses)) is None:
            return 0
        tokens = [*cache.tokens[start:], *guesses]
        plan.prefills.append(
            (sequence, TokenSpan(tokens, start, self.manager.get_block_ids(cache.id), len(guesses), sequence.adapter))
        )
        cache.num_computed_tokens += 1
        self.waiting.charge(sequence, 1)
        return len(tokens)

    def _admit(self, sequence: SequenceState, computed: ComputedBlocks, budget: int, plan: SchedulerOutput) -> int:
        count = self._pieces.next(sequence, computed.num_tokens, budget)
        self._allocate(sequence, computed, count)
        sequence.cache.num_computed_tokens = computed.num_tokens
        self.running.append(sequence)
        self._append(sequence, count, plan)
        return count

    def _load(self, sequence: SequenceState, computed: ComputedBlocks, reach: int) -> None:
        counts = sequence.admitted is None
        self._allocate(sequence, computed, reach - computed.num_tokens)
        self.loading.append(sequence)
        assert self._tiers is not None
        self._tiers.begin(sequence, computed.num_tokens, reach, counts=counts)

    def _allocate(self, sequence: SequenceState, computed: ComputedBlocks, count: int) -> None:
        blocks = self.manager.allocate_slots(sequence.cache, count, computed, delay_cache_blocks=True)
        assert blocks is not None, "can_fit_full_sequence counted too few blocks"
        sequence.admit(computed.num_tokens)

    def _append(self, sequence: SequenceState, count: int, plan: SchedulerOutput) -> None:
        cache = sequence.cache
        start = cache.num_computed_tokens
        span = TokenSpan(
            cache.tokens[start : start + count], start, self.manager.get_block_ids(cache.id), adapter=sequence.adapter
        )
        (plan.decodes if count == 1 and start else plan.prefills).append((sequence, span))
        cache.num_computed_tokens += count
        # This step writes them, before anything of it is read.
        self.manager.cache_blocks(cache, self._pieces.reusable(sequence, cache.num_computed_tokens))
        self.waiting.charge(sequence, count)

    def _preempt(self, sequence: SequenceState) -> None:
        """Free the least important sequence; it starts again from what is still cached when there is room."""
        self.running.remove(sequence)
        self.manager.free(sequence.cache)
        sequence.cache.num_computed_tokens = 0
        self.waiting.append(sequence)
