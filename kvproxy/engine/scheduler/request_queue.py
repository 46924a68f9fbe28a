from bisect import insort
from collections.abc import Iterator

from kvproxy.engine.scheduler.sequence import SequenceState

PROMPT_COST = 1
OUTPUT_COST = 2


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

    def register(self, sequence: SequenceState) -> None:
        """Count a sequence as unfinished until `unregister`. A tenant without unfinished sequences gains no advantage."""
        tenant = sequence.request.tenant
        if not self._num_live.get(tenant):
            # A tenant gains no credit while it has no unfinished sequence.
            if not self._num_live:
                self._service.clear()
            least = min((self._service.get(name, 0) for name in self._num_live), default=0)
            self._service[tenant] = max(self._service.get(tenant, 0), least)
        self._num_live[tenant] = self._num_live.get(tenant, 0) + 1

    def unregister(self, sequence: SequenceState) -> None:
        tenant = sequence.request.tenant
        self._num_live[tenant] -= 1
        if not self._num_live[tenant]:
            del self._num_live[tenant]

    def add(self, sequence: SequenceState) -> None:
        """Enqueue a registered sequence. A preempted sequence keeps its arrival time."""
        queue = self._queues.setdefault(sequence.request.tenant, [])
        insort(
            queue,
            sequence,
            key=lambda item: (item.request.queue_priority, item.request.tenant_priority, item.arrival_time),
        )

    def remove(self, sequence: SequenceState) -> None:
        tenant = sequence.request.tenant
        self._queues[tenant].remove(sequence)
        if not self._queues[tenant]:
            del self._queues[tenant]

    def charge(self, sequence: SequenceState, num_tokens: int) -> None:
        cost = OUTPUT_COST if sequence.num_output_tokens else PROMPT_COST
        self._service[sequence.request.tenant] += cost * num_tokens
