"""Reads the periods of sums in tables: days, weeks, months, and quarters, also in English and German words."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from kvproxy.analyse.log_formats.log_times import is_date, parse_time
from kvproxy.apis.json import Json

Unit = Literal["day", "week", "month", "quarter"]
_DAY = 86_400.0
_MONTHS = (
    *"january february march april may june july august september october november december".split(),
    *"januar februar märz april mai juni juli august september oktober november dezember".split(),
)
_MIDNIGHT = re.compile(r"(.+?)[T ]+00:00(?::00(?:\.0+)?)?(?: ?(?:Z|UTC|\+00:?00))?")
_DAYS = re.compile(r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})")
_FORMS = (
    re.compile(r"(?P<year>\d{4})[-/. ]?(?P<month>\d{2})"),
    re.compile(r"(?P<year>\d{4})[-/. ](?P<month>\d)"),
    re.compile(r"(?P<month>\d{1,2})[-/. ](?P<year>\d{4})"),
    re.compile(r"(?P<name>[^\W\d_]{3,})\.?[-/ ]?(?P<year>\d{4})"),
    re.compile(r"(?P<year>\d{4})[-/ ]?(?P<name>[^\W\d_]{3,})\.?"),
    re.compile(r"Q(?P<quarter>[1-4])[-/ ]*(?P<year>\d{4})", re.IGNORECASE),
    re.compile(r"(?P<year>\d{4})[-/ ]*Q(?P<quarter>[1-4])", re.IGNORECASE),
    re.compile(r"(?:W|CW|KW|Week|Woche) ?(?P<week>\d{1,2})[-/, ]+(?P<year>\d{4})", re.IGNORECASE),
    re.compile(r"(?P<year>\d{4})[-/, ]*(?:W|CW|KW|Week|Woche) ?(?P<week>\d{1,2})", re.IGNORECASE),
)
_SHORT_YEAR = re.compile(r"(?P<name>[^\W\d_]{3,})\.?[-' ]+(?P<year>\d{2})")
"""Sep-26, which is a day in another column than one of months."""


@dataclass(frozen=True, slots=True)
class Period:
    """A period in UTC: its start in seconds since the epoch, and its length."""

    start: float
    seconds: float


def read_period(cell: Json, unit: Unit = "day") -> Period | None:
    """Return the period in a cell, such as 2026-09-01, 2026-09, Sep 2026, 2026-W36, or Q3 2026; None for another text.

    In the column of a longer `unit`, such as a month, a date is one of its days.
    """
    text = str(cell).strip()
    if (match := _MIDNIGHT.fullmatch(text)) is not None:
        text = match[1]
    try:
        if is_date(text) and (time := parse_time(text)) is not None:
            return _period(datetime.fromtimestamp(time, UTC).date(), unit)
        if (match := _DAYS.fullmatch(text)) is not None:
            return _period(date(int(match["year"]), int(match["month"]), int(match["day"])), unit)
        forms = _FORMS if unit != "month" else (*_FORMS, _SHORT_YEAR)
        found = next((match.groupdict() for form in forms if (match := form.fullmatch(text))), None)
        return None if found is None else _named_period(found, unit)
    except ValueError:
        return None


def _named_period(found: dict[str, str], unit: Unit) -> Period | None:
    """Return the period with a number or a name. Raises ValueError for a wrong number."""
    year = int(found["year"]) if len(found["year"]) == 4 else 2000 + int(found["year"])
    if "quarter" in found:
        return _period(date(year, 3 * int(found["quarter"]) - 2, 1), "quarter")
    if "week" in found:
        return _period(date.fromisocalendar(year, int(found["week"]), 1), "week")
    if "month" in found:
        # In a column of weeks or quarters, it is a number of theirs, whose first day is unknown.
        return None if unit in ("week", "quarter") else _period(date(year, int(found["month"]), 1), "month")
    name = found["name"].casefold()
    month = next((number % 12 + 1 for number, known in enumerate(_MONTHS) if known.startswith(name)), None)
    return None if month is None else _period(date(year, month, 1), "month")


def _period(day: date, unit: Unit) -> Period:
    """Return the period of a day; a week begins with it."""
    end = day + timedelta(days=7 if unit == "week" else 1)
    if unit in ("month", "quarter"):
        months = 1 if unit == "month" else 3
        day = date(day.year, (day.month - 1) // months * months + 1, 1)
        end = date(day.year + (day.month + months > 12), (day.month + months - 1) % 12 + 1, 1)
    start = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
    return Period(start, (end - day).days * _DAY)
