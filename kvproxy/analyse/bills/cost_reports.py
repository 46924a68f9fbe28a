"""Reads reports of costs, which have money instead of tokens, and names the report of usage that has the tokens."""

from collections.abc import Iterator, Sequence

from kvproxy.analyse.bills.cost_tables import ANTHROPIC_USAGE, OPENAI_USAGE, read_cost_table
from kvproxy.analyse.bills.reported_costs import CostReport, reported_cost
from kvproxy.analyse.log_formats.amounts import currency_named, read_amount
from kvproxy.apis.json import JsonObject, field, objects
from kvproxy.providers.cost_comparison import ReportedCost

_OF_ANTHROPIC = {"cost_type", "token_type", "context_window"}
"""Fields of the results of Anthropic's API."""


def read_costs(rows: Sequence[tuple[int, JsonObject]]) -> CostReport | None:
    """Return the costs in the numbered rows of a report of costs; None for other rows."""
    if not (results := list(_cost_results([row for _, row in rows]))):
        return read_cost_table(rows)
    is_openai = isinstance(results[0][1]["amount"], dict)
    read = _openai_cost if is_openai else _anthropic_cost
    return CostReport(
        [read(period, result) for period, result in results], OPENAI_USAGE if is_openai else ANTHROPIC_USAGE
    )


def _cost_results(rows: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yield the results of an admin API, each with its period; the results may be the rows, without periods."""
    are_results = {name for row in rows for name in row} >= _OF_ANTHROPIC
    for row in rows:
        for bucket in objects(row.get("data")) or [row]:
            for result in objects(bucket.get("results")) or [bucket]:
                amount = result.get("amount")
                is_anthropic = isinstance(amount, str) and "currency" in result and (are_results or result is not row)
                if is_anthropic or field(amount, "value") is not None:
                    yield bucket, result


def _openai_cost(period: JsonObject, result: JsonObject) -> tuple[str, ReportedCost | None]:
    amount = read_amount(field(result["amount"], "value"))
    return _cost(period | result, currency_named(field(result["amount"], "currency")), amount, "openai")


def _anthropic_cost(period: JsonObject, result: JsonObject) -> tuple[str, ReportedCost | None]:
    """The API states hundredths of the currency."""
    number = read_amount(result["amount"])
    return _cost(
        period | result, currency_named(result["currency"]), None if number is None else number / 100, "anthropic"
    )


def _cost(row: JsonObject, currency: str, amount: float | None, provider: str) -> tuple[str, ReportedCost | None]:
    return currency, None if amount is None else reported_cost(row, amount, provider=provider)
