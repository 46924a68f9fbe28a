"""Reads the times in the rows of logs."""

import re
from datetime import UTC, datetime
from math import isfinite

from kvproxy.apis.json import Json, JsonMap

TIME_FIELDS = (
    "time timestamp @timestamp ts created created_at startTime start_time started_at startedDateTime request_created_at"
).split()
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
# Spreadsheets write 2026/9/1 9:05. With the day or the month first, the date is ambiguous.
_YEAR_FIRST = re.compile(r"(\d{4})([/.-])(\d{1,2})\2(\d{1,2})(?:[T ]+(\d{1,2})(:.+))?")
# Larger timestamps are in milliseconds, microseconds, or nanoseconds: in seconds they would be after the year 5138.
_MAX_SECONDS = 1e11


def parse_time(time: Json) -> float | None:
    """Return seconds since the epoch; None for an invalid time. Times without a zone are in UTC."""
    if isinstance(time, str):
        try:
            parsed = datetime.fromisoformat(_iso_text(time))
        except ValueError:
            try:
                time = float(time)
            except ValueError:
                return None
        else:
            return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    seconds = _finite(time)
    while seconds is not None and seconds > _MAX_SECONDS:
        seconds /= 1000
    return seconds


def is_date(time: Json) -> bool:
    """Whether a time is a day without a time of day, such as 2026-11-21."""
    return isinstance(time, str) and _DATE.fullmatch(_iso_text(time)) is not None


def _iso_text(time: str) -> str:
    """Return a time that begins with the year in the form of ISO 8601, such as 2026-09-01 for 2026/9/1."""
    match = _YEAR_FIRST.fullmatch(time.strip())
    if match is None:
        return time.strip()
    year, _, month, day, hour, rest = match.groups()
    date = f"{year}-{month:0>2}-{day:0>2}"
    return date if hour is None else f"{date}T{hour:0>2}{rest}"


def _finite(number: Json) -> float | None:
    """Return a number as a float; None if it is no number, or none that a float can have."""
    if not isinstance(number, int | float) or isinstance(number, bool):
        return None
    try:
        return float(number) if isfinite(number) else None
    except OverflowError:
        return None


def seconds_between(start: float | None, end: float | None) -> float:
    """Return the duration of a request; 0 if a time is unknown."""
    return max(0.0, end - start) if start is not None and end is not None else 0.0


def seconds_of(milliseconds: Json) -> float:
    """Return the duration of a request from milliseconds; 0 if it is unknown."""
    return max(0.0, (_finite(milliseconds) or 0.0) / 1000)


def logged_time(value: JsonMap) -> float | None:
    """Return the time of a row in seconds since the epoch; None if it has no valid time."""
    name = time_field(value)
    return None if name is None else parse_time(value[name])


def time_field(value: JsonMap) -> str | None:
    """Return the name of the field with the time of a row; None without such a field."""
    return next((name for name in TIME_FIELDS if value.get(name) not in (None, "")), None)
