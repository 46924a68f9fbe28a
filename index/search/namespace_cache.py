"""Which namespaces hold anything to compare with: most that were asked in a moment ago still do."""

import asyncio
from collections import OrderedDict

from kvproxy.index.search.neighbours import Neighbours

_MOST = 4096


class Held:
    """Namespaces with a vector, as far as they are remembered. One that is emptied is searched once more, for nothing.

    Args:
        neighbours: knows.
        in_thread: it takes its time to say; a file answers faster than a thread starts.
    """

    def __init__(self, neighbours: Neighbours, *, in_thread: bool) -> None:
        self._neighbours = neighbours
        self._in_thread = in_thread
        # The one that was asked in last is at the end.
        self._known: OrderedDict[str, None] = OrderedDict()

    async def holds(self, namespace: str) -> bool:
        """Whether a namespace has any vector, or had one lately; may raise a CacheStoreError."""
        if namespace in self._known:
            self._known.move_to_end(namespace)
            return True
        holds = self._neighbours.holds
        if await asyncio.to_thread(holds, namespace) if self._in_thread else holds(namespace):
            self._known[namespace] = None
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
            return True
        return False

    def forget(self, namespace: str) -> None:
        """Nothing was found in a namespace: ask again next time."""
        self._known.pop(namespace, None)
