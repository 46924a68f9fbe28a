"""Describes the files that are no log of a known format, and the fix."""

from collections.abc import Sequence
from pathlib import Path

from kvproxy.analyse.bills.cost_tables import lacking_columns
from kvproxy.analyse.log_formats.log_format import LogFormat
from kvproxy.analyse.log_formats.rows import NO_JSON, NO_OBJECT_ITEM, NO_OBJECT_LINE, FileRows
from kvproxy.analyse.log_formats.usage_reports import USAGE_TABLE
from kvproxy.apis.json import JsonObject

_SHOWN_FIELDS = 6
_TRACE_FIELDS = {"hash_ids", "input_length", "block_hashes"}
_RENAME = (
    "rename its headings: a table of usage has date, model, input_tokens, and output_tokens, and one of costs has date, amount,"
    " and currency"
)
_NAME_COLUMN = "name the column of questions with --column, or convert its rows to JSON lines with model and messages"


def describe_empty(file: Path, content: FileRows) -> str:
    """Return why a file without rows has no requests."""
    if content.invalid:
        number, error = next(iter(content.invalid.items()))
        return f"{file}, line {number}: {error}"
    if NO_JSON in content.skipped:
        return f"{file} is not JSON: add --format prompts if each line is a prompt"
    if places := content.skipped.get(NO_OBJECT_ITEM) or content.skipped.get(NO_OBJECT_LINE):
        return f"{file} has {len(places):,} values, and none is a JSON object: give requests as objects"
    return f"{file} is empty: it contains no requests"


def describe_unknown(file: Path, content: FileRows, formats: Sequence[LogFormat], *, for_bill: bool) -> str:
    """Return the missing fields of rows in no known format, and the fix."""
    number, value = content.rows[0]
    fields = ", ".join(list(value)[:_SHOWN_FIELDS]) + (", ..." if len(value) > _SHOWN_FIELDS else "")
    if content.is_table:
        fix, other = (_RENAME, "") if for_bill else (_NAME_COLUMN, f"; else {_NAME_COLUMN}")
        usage = next(log_format for log_format in formats if log_format.name == USAGE_TABLE)
        lacking = [name.replace(" ", "_") for name in usage.missing(value)]
        if of_costs := lacking_columns([value for _, value in content.rows]):
            fix = f"to be a table of costs, it lacks a column {' and '.join(of_costs)}{other}"
        elif len(lacking) < len(usage.signature):
            fix = f"to be a table of usage, it lacks a column {' and '.join(lacking)}: rename it in the heading{other}"
        return f"{file} is a table with the columns {fields}: {fix}"
    if _TRACE_FIELDS & set(value):
        return f"{file} is a trace, its fields are {fields}: kvproxy simulate reads traces"
    nearest = min(
        (log_format for log_format in formats if log_format.has_requests),
        key=lambda log_format: _distance(log_format, value),
    )
    missing = " and ".join(name.replace("|", " or ") for name in nearest.missing(value))
    return (
        f"{file}, line {number}: unknown format, its fields are {fields or 'none'};"
        f" the nearest format, {nearest.title}, needs {missing}"
    )


def _distance(format: LogFormat, value: JsonObject) -> tuple[float, int]:
    missing = len(format.missing(value))
    # Plain requests are the nearest format of rows that resemble no export: one common field is no resemblance.
    is_similar = format.name == "requests" or len(format.signature) - missing > 1
    return missing / len(format.signature) if is_similar else 2.0, 0 if format.name == "requests" else 1
