"""Recognizes reports of costs, which have money instead of tokens, and names the report that a bill needs."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from kvproxy.analyse.log_formats.counts import read_amount
from kvproxy.analyse.log_formats.fact_columns import INPUT, fact_headings
from kvproxy.apis.json import Json, JsonObject, field, objects

_OPENAI = "OpenAI's /v1/organization/usage/completions, or the CSV of its activity"
_ANTHROPIC = "Anthropic's /v1/organizations/usage_report/messages, or the CSV of its usage"
_COLUMNS = {
    "amount_value": _OPENAI,
    "cost_usd": _ANTHROPIC,
    "Spend ($)": "LiteLLM's spend logs",
    "Spend": "LiteLLM's spend logs",
}
"""The report of usage beside a table of costs, by the column with the amount."""


def describe_costs(rows: Sequence[JsonObject]) -> str | None:
    """Say that rows are a report of costs, with its sum, and which report has tokens. None for other rows."""
    if results := list(_cost_results(rows)):
        is_openai = isinstance(results[0]["amount"], dict)
        usage = _OPENAI if is_openai else _ANTHROPIC
        amounts = list(map(_openai_amount if is_openai else _anthropic_amount, results))
    elif (column := _cost_column(rows)) is not None:
        usage = _COLUMNS[column]
        amounts = [(row.get(column), str(row.get("amount_currency") or "USD")) for row in rows if column in row]
    else:
        return None
    return f"a report of costs{_sum(amounts)}, which has no tokens: give the report of usage ({usage})"


def _cost_results(rows: Sequence[JsonObject]) -> Iterator[JsonObject]:
    for row in rows:
        for bucket in objects(row.get("data")) or [row]:
            for result in objects(bucket.get("results")) or [bucket]:
                amount = result.get("amount")
                if field(amount, "value") is not None or (isinstance(amount, str) and "currency" in result):
                    yield result


def _openai_amount(result: JsonObject) -> tuple[Json, str]:
    return field(result["amount"], "value"), str(field(result["amount"], "currency") or "USD")


def _anthropic_amount(result: JsonObject) -> tuple[Json, str]:
    """The API states hundredths of the currency."""
    number = read_amount(result["amount"])
    return None if number is None else number / 100, str(result["currency"])


def _cost_column(rows: Sequence[JsonObject]) -> str | None:
    names = {name for row in rows for name in row}
    has_tokens = not set(fact_headings(names).values()).isdisjoint(INPUT)
    return None if has_tokens else next((column for column in _COLUMNS if column in names), None)


def _sum(amounts: Sequence[tuple[Json, str]]) -> str:
    """Return the sum by currency; empty if an amount is unreadable."""
    sums: defaultdict[str, float] = defaultdict(float)
    for amount, currency in amounts:
        if (number := read_amount(amount)) is None:
            return ""
        sums[currency.upper()] += number
    return f" ({' and '.join(f'{total:,.2f} {currency}' for currency, total in sums.items())})" if sums else ""
