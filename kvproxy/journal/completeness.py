"""Finds from when on the journal has the record of each request."""

import time

from kvproxy.journal.reader import OF_PROXY, JournalReader
from kvproxy.units import start_of_utc_day, utc_day

_DAY = 86_400
# The sums count no revalidations, and only a part of warming.
_CLIENTS = f"layer not in {OF_PROXY}"
_SUMMED = f"tag = '' and {_CLIENTS}"


def complete_since(reader: JournalReader) -> float | None:
    """Return the time of the oldest record in seconds since the epoch; None if no record was removed before it.

    Without any record, return the end of the last UTC day that had one, or now on that day.
    """
    # Sums stay when records are removed.
    first, last = reader.rows(f"select min(day), max(day) from totals where {_SUMMED}", [])[0]
    rows = reader.rows("select number, time from records order by number limit 1", [])
    if not rows:
        return None if last is None else min(time.time(), start_of_utc_day(last) + _DAY)
    number, oldest = int(rows[0][0]), float(rows[0][1])
    day = utc_day(oldest)
    if number > 1 or (first is not None and first < day):
        return oldest
    # SQLite numbers from 1 again after all records were removed, perhaps on the same day.
    return oldest if _num_summed(reader, day) > _num_recorded(reader, start_of_utc_day(day) + _DAY) else None


def _num_summed(reader: JournalReader, day: str) -> int:
    return int(reader.rows(f"select coalesce(sum(requests), 0) from totals where {_SUMMED} and day = ?", [day])[0][0])


def _num_recorded(reader: JournalReader, end: float) -> int:
    """Return the number of requests that arrived before a time. Those that ended more than a day later are not counted."""
    last = reader.first_number_since(end + _DAY)
    sql = f"select count(*) from requests where number <= ? and time < ? and {_CLIENTS}"
    return int(reader.rows(sql, [last, end])[0][0])
