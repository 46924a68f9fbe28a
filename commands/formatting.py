"""Formats times, numbers, and money in cells."""

import json
import re
import sys
import time
from dataclasses import fields
from datetime import datetime
from typing import Any

from kvproxy.telemetry.printable_text import escape_controls, escape_json_controls
from kvproxy.units import format_seconds

_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?%?")


def format_age(created: float) -> str:
    return format_seconds(round(time.time() - created))


def local_time(seconds: float) -> str:
    """Format seconds since the epoch as local time; if stdout is a pipe, as ISO 8601. An invalid time stays a number."""
    try:
        time = datetime.fromtimestamp(seconds).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
    is_piped = not sys.stdout.isatty()
    return time.isoformat(timespec="seconds") if is_piped else time.replace(tzinfo=None).isoformat(" ", "seconds")


def table_time(seconds: float) -> str:
    """Format seconds since the epoch like `local_time`, but shorter at a terminal."""
    text, today = local_time(seconds), local_time(time.time())
    day, _, time_of_day = text.partition(" ")
    if not time_of_day:
        return text
    if day == today[:10]:
        return time_of_day
    return f"{day[5:]} {time_of_day[:5]}" if day[:5] == today[:5] else day


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def money(amount: float | None, *, is_bound: bool = False, leaves_out_models: bool = False) -> str | None:
    """Format money, which may be an upper bound, and leave out models without a price."""
    if amount is None:
        return None
    return f"{'at most ' if is_bound else ''}{amount:,.4f}{' (priced)' if leaves_out_models else ''}"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def one_line(value: object) -> str:
    """Format a value on one line: an integer with thousands separators, None and "" as `-`."""
    if value is None or value == "":
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape_controls(" ".join(str(value).split()))


def raw_text(value: object, *, is_number: bool) -> str:
    """Format a value of a column for programs: numbers without thousands separators, None and "" as an empty text."""
    if value is None or value == "" or (is_number and value == "-"):
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    text = one_line(value)
    return text.replace(",", "") if is_number and _GROUPED.fullmatch(text) else text


def json_text(value: Any) -> str:
    """Format JSON, which may contain dataclasses."""
    return escape_json_controls(json.dumps(value, indent=2, ensure_ascii=False, default=_fields_of))


def _fields_of(value: Any) -> dict[str, Any]:
    # `asdict` would copy values recursively.
    return {field.name: getattr(value, field.name) for field in fields(value)}
