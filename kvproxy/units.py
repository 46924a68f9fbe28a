"""Parses and formats durations, sizes, and the names of tenants."""

import math
import re
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

MAX_SECONDS = 10 * 365 * 86_400.0
"""Longest duration: ten years. RFC 9111 allows to shorten a duration beyond 2^31 seconds."""
FIRST_DATE = 1e9
"""Lower times of a log are relative to its start, and not seconds since the epoch."""
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DECIMAL = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BYTES = {unit.lower(): size for unit, size in (_DECIMAL | _BINARY).items()}
_LISTED_LINES = 5
_TIME_FORMS = "90s, 7d, 2026-11-28, 2026-11-28T14:30, 14:30, now, today, or yesterday"
_SHORT_TIME = re.compile(r"(?:([0-9]{2}-[0-9]{2}) )?([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)")
_PARTS = re.compile(r"\s*((?:[0-9]+(?:ms|min|[smhdw]))+)\s*")
_PART = re.compile(r"([0-9]+)([a-z]+)")
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


def parse_seconds(value: object) -> float:
    """Parse a duration such as 250ms, 90s, 5m, 2h30m, or 7d, or a timedelta; a number is in seconds. Raises ValueError.

    A longer duration than `MAX_SECONDS` is shortened to it.
    """
    if isinstance(value, str) and value.rstrip().endswith("M"):
        raise ValueError(f"{value[:40]!r} may mean minutes or months: use a form such as 1m or 30d")
    if isinstance(value, str) and (parts := _PARTS.fullmatch(value)):
        return min(sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(parts[1])), MAX_SECONDS)
    number = _parse_quantity(value.total_seconds() if isinstance(value, timedelta) else value, _SECONDS, "s")
    if number is None:
        raise ValueError(f"{str(value)[:40]!r} is not a duration: use a form such as 90s, 5m, 2h or 7d")
    return min(number, MAX_SECONDS)


def parse_since(text: str) -> float | datetime:
    """Parse the start of a period: a duration before its end in seconds, or a time as `parse_time` does. Raises ValueError.

    A number without a unit above `MAX_SECONDS` is a time in seconds since the epoch, as `kvproxy log --json` has them.
    """
    moment = _parse_epoch(text)
    try:
        if moment is None:
            return parse_seconds(text)
    except ValueError:
        moment = _parse_date(text)
        if moment is None and text.rstrip().endswith("M"):
            raise
    if moment is None:
        raise ValueError(f"{text[:40]!r} is neither a duration nor a time: use a form such as {_TIME_FORMS}")
    return moment


def parse_time(text: str) -> float:
    """Parse a time: seconds since the epoch, a duration before now, a date (its start), or a date with a time of day.

    `today` and `yesterday` are dates; `14:30` is a time of today, and `11-28 14:30` of this year, as tables show them. Without
    an offset it is local time. Return seconds since the epoch. Raises ValueError.
    """
    try:
        number = float(text)
    except ValueError:
        moment = parse_since(text)
        return moment.timestamp() if isinstance(moment, datetime) else time.time() - moment
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]!r} is not a time: use a form such as {_TIME_FORMS}")
    return number


def require_unit(text: str) -> None:
    """Raise ValueError for a number without a unit, which may mean minutes or days, except 0 and seconds since the epoch."""
    number = text.strip()
    if re.fullmatch(r"[0-9]*\.?[0-9]+", number) and 0 < float(number) <= MAX_SECONDS:
        raise ValueError(
            f"{number[:40]!r} has no unit: use a form such as {number[:8]}s, {number[:8]}m, or {number[:8]}d"
        )


def _parse_epoch(text: str) -> datetime | None:
    try:
        seconds = float(text)
        return datetime.fromtimestamp(seconds, UTC) if seconds > MAX_SECONDS else None
    except (ValueError, OverflowError, OSError):
        return None


def _parse_date(text: str) -> datetime | None:
    if text.strip().lower() == "now":
        return datetime.now().astimezone()
    days = {"today": 0, "yesterday": 1}.get(text.strip().lower())
    if days is not None:
        return datetime.combine((datetime.now() - timedelta(days)).date(), datetime.min.time()).astimezone()
    today = datetime.now().date().isoformat()
    if (short := _SHORT_TIME.fullmatch(text.strip())) is not None:
        text = f"{today[:5] + short[1] if short[1] else today}T{short[2]}"
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment if moment.tzinfo is not None else moment.astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def parse_bytes(value: object) -> int:
    """Parse a size; a number without a unit is in bytes. KiB, MiB, GiB are powers of 1,024. Raises ValueError."""
    number = _parse_quantity(value, _BYTES, "b")
    if number is None or not math.isfinite(number):
        raise ValueError(f"{str(value)[:40]!r} is not a size: use a form such as 512MiB or 2GiB")
    return int(number)


def _parse_quantity(value: object, units: dict[str, float] | dict[str, int], default_unit: str) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if math.isfinite(value) else None
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    unit = None if match is None else units.get(match[2].lower() or default_unit)
    return None if match is None or unit is None else float(match[1]) * unit


def format_seconds(seconds: float) -> str:
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size or seconds == size:
            return f"{_format_rounded(seconds / size)}{unit}"
    return f"{_format_rounded(max(0.0, seconds))}s"


def _format_rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")


def format_bytes(count: float) -> str:
    for unit, size in reversed(_BINARY.items()):
        if count >= size:
            return f"{_format_rounded(count / size)}{unit}"
    return f"{count:.0f}B"


def format_amount(amount: float) -> str:
    """Format an amount of money with up to nine significant digits and without an exponent, such as 1,500 or 0.00001."""
    decimals = max(0, 8 - math.floor(math.log10(abs(amount)))) if amount else 0
    text = f"{amount:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def utc_day(time: float) -> str:
    """Return the UTC day of a time in seconds since the epoch, such as 2026-11-21."""
    return _utc_day(int(time // 86_400))


@lru_cache(maxsize=16)
def _utc_day(number: int) -> str:
    return datetime.fromtimestamp(number * 86_400, UTC).date().isoformat()


def start_of_utc_day(day: str) -> float:
    """Return the start of a UTC day, such as 2026-11-21, in seconds since the epoch."""
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def tenant_name(tenant: str) -> str:
    """Return a tenant's name without the prefix `client:`, to show it to users."""
    return tenant.removeprefix("client:")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def first_names(names: Sequence[str], most: int) -> str:
    """List the first names, and the number of further names."""
    return ", ".join(names[:most]) + (f", and {len(names) - most:,} more" if len(names) > most else "")


def format_line_numbers(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _LISTED_LINES:,} more" if len(numbers) > _LISTED_LINES else ""
    shown = ", ".join(map(str, sorted(numbers)[:_LISTED_LINES]))
    return f"{'line' if len(numbers) == 1 else 'lines'} {shown}{more}"


def period_name(day: date, period: str) -> str:
    """Return the name of a period of a day: 2026-11-21, the ISO week 2026-W47, 2026-11, or the quarter 2026-Q4."""
    if period == "week":
        year, week, _ = day.isocalendar()
        return f"{year}-W{week:02}"
    if period == "quarter":
        return f"{day.year}-Q{(day.month + 2) // 3}"
    return day.isoformat() if period == "day" else day.isoformat()[:7]


def period_of_sum(start: date, seconds: float, period: str) -> str:
    """Return the name of the period that has a sum of days: of a longer one if the sum is longer, such as 2026-09 of a day.

    A sum that no period has is named by its first and last day.
    """
    last = start + timedelta(seconds=max(0.0, seconds - 1))
    for unit in (period, "day", "week", "month", "quarter"):
        if (name := period_name(start, unit)) == period_name(last, unit):
            return name
    return f"{start} to {last}"


def letters_of(name: str) -> str:
    """Return the heading of a column without case, spaces, and punctuation."""
    return re.sub(r"[\W_]", "", name).casefold()
