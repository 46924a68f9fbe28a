"""Who is admitted next: priority first, then the tenant that got least of the engine, then who came first.

Fairness counts tokens served (virtual token counters: Sheng et al., OSDI 2024). A generated token counts as two prompt
tokens; what was found in a cache costs nothing. A tenant that comes back from idling starts level with the one that got
least, so idling earns no claim on the past.
"""

from bisect import insort
from collections.abc import Iterator

from kvproxy.engine.sequence import RunningSequence

PROMPT_COST = 1
ANSWER_COST = 2


class WaitingLine:
    """Sequences that wait, of all tenants, and what each tenant was served."""

    def __init__(self) -> None:
        self._lines: dict[str, list[RunningSequence]] = {}
        self._served: dict[str, int] = {}
        self._live: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __contains__(self, sequence: object) -> bool:
        return any(sequence in line for line in self._lines.values())

    def __iter__(self) -> Iterator[RunningSequence]:
        """In the order of admission; tokens charged meanwhile count, and what was yielded may be removed."""
        lines = {tenant: list(line) for tenant, line in self._lines.items()}
        while lines:
            tenant = min(lines, key=lambda name: self._rank(name, lines[name][0]))
            yield lines[tenant].pop(0)
            if not lines[tenant]:
                del lines[tenant]

    def _rank(self, tenant: str, head: RunningSequence) -> tuple[int, int, int]:
        return head.source.queue_priority, self._served.get(tenant, 0), self._number(head)

    def _number(self, sequence: RunningSequence) -> int:
        return self._numbers[sequence.cache.id]

    def enter(self, sequence: RunningSequence) -> None:
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

    def leave(self, sequence: RunningSequence) -> None:
        """A sequence is complete or cancelled."""
        tenant = sequence.source.tenant
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
        del self._numbers[sequence.cache.id]

    def append(self, sequence: RunningSequence) -> None:
        """Let a sequence that entered wait; one that was preempted is in front of those that came after it."""
        line = self._lines.setdefault(sequence.source.tenant, [])
        insort(
            line, sequence, key=lambda each: (each.source.queue_priority, each.source.own_priority, self._number(each))
        )

    def remove(self, sequence: RunningSequence) -> None:
        """It waits no more."""
        tenant = sequence.source.tenant
        self._lines[tenant].remove(sequence)
        if not self._lines[tenant]:
            del self._lines[tenant]

    def charge(self, sequence: RunningSequence, tokens: int) -> None:
        """Count tokens that are computed for a sequence."""
        cost = ANSWER_COST if sequence.num_generated else PROMPT_COST
        self._served[sequence.source.tenant] += cost * tokens
