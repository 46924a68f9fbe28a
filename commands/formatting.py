"""Times and sizes as people read them."""

import time
from datetime import datetime

_TIMES = (("d", 86_400), ("h", 3_600), ("min", 60))
_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def duration(seconds: float) -> str:
    """A length of time in the largest unit that fits, as `3 min`."""
    for unit, size in _TIMES:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def age(created: float) -> str:
    """Time since a moment, given in seconds since the epoch."""
    return duration(time.time() - created)


def moment(seconds: float) -> str:
    """A moment, given in seconds since the epoch, in local time; the number itself where no calendar has it."""
    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"


def size(count: float) -> str:
    """Bytes in the largest unit that fits, as `1.2 MiB`."""
    for unit, step in _SIZES:
        if count >= step:
            return f"{count / step:,.1f} {unit}"
    return f"{count:.0f} B"


def percent(share: float) -> str:
    """A share of 1, as `48.3%`."""
    return f"{100 * share:.1f}%"
