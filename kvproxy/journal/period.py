"""The start of the period of a report."""

import time
from datetime import datetime

from kvproxy.errors import InvalidRequest


def start_time(since: float | datetime | None, end: float | None = None) -> float | None:
    """Return the start of a period in seconds since the epoch: `since` is a time, or seconds before `end` (default: now).

    Raises InvalidRequest if a time is not before `end`.
    """
    if since is None:
        return None
    latest = time.time() if end is None else end
    if not isinstance(since, datetime):
        return latest - since
    if since.timestamp() >= latest:
        when = "in the future" if end is None else "not before until; a date means its start"
        raise InvalidRequest(f"since={since.isoformat()} is {when}", param="since")
    return since.timestamp()
