"""Sums of requests by day, tenant, model, layer, and tag. Pruning does not change them."""

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from kvproxy.journal.record import Layer

ALL = ""
"""The tag of all requests. A request with tags is counted under each of them, too."""
Place = tuple[str, str, str, str, str]


@dataclass(slots=True)
class Total:
    """Sums over requests of one kind.

    Attributes:
        saved_seconds: durations of the computed responses that hits replaced, less the durations of the hits.
        expected_wrong: expected number of wrong responses among semantic hits.
        seconds: until the responses ended.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reused_tokens: int = 0
    saved_seconds: float = 0.0
    expected_wrong: float = 0.0
    seconds: float = 0.0


_COLUMNS = tuple(column.name for column in fields(Total))
_UPSERT = (
    f"insert into totals (day, tenant, model, layer, tag, {', '.join(_COLUMNS)}) values ({', '.join('?' * 12)})"
    " on conflict (day, tenant, model, layer, tag) do update set "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _COLUMNS)
)


class Totals:
    """Sums that are not yet written."""

    def __init__(self) -> None:
        self._sums: defaultdict[Place, Total] = defaultdict(Total)

    def of(self, time: float, tenant: str, model: str, layer: Layer, tag: str = ALL) -> Total:
        """The sum for a request."""
        return self._sums[datetime.fromtimestamp(time, UTC).date().isoformat(), tenant, model, layer, tag]

    def write(self, connection: sqlite3.Connection) -> None:
        """Add the sums to the file."""
        rows = [(*place, *(getattr(total, name) for name in _COLUMNS)) for place, total in self._sums.items()]
        connection.executemany(_UPSERT, rows)
        self._sums.clear()
