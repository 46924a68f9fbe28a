"""Remembers why answers were removed, for explanations."""

from collections import OrderedDict
from collections.abc import Sequence

from kvproxy.index.store import RemovedEntry
from kvproxy.index.store.store_types import RemovalReason

_MAX_KEYS = 10_000


class Removals:
    """The reasons of the last 10,000 removals by this process, by key."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[str, RemovalReason] = OrderedDict()

    def add(self, removed: Sequence[RemovedEntry]) -> None:
        for entry in removed:
            if entry.reason is not None and entry.reason != "replaced":
                self._reasons[entry.key] = entry.reason
                self._reasons.move_to_end(entry.key)
        while len(self._reasons) > _MAX_KEYS:
            self._reasons.popitem(last=False)

    def reason(self, key: str) -> RemovalReason | None:
        return self._reasons.get(key)
