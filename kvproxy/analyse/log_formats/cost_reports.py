"""Reads reports of costs, which have money instead of tokens, and names the report of usage that has the tokens."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isclose

from kvproxy.analyse.log_formats.counts import read_amount
from kvproxy.analyse.log_formats.fact_columns import INPUT, fact_headings, facts_of, letters_of
from kvproxy.analyse.log_formats.labels import labels_of
from kvproxy.analyse.log_formats.log_format import PROMPT_FIELDS, parse_time
from kvproxy.apis.json import Json, JsonObject, field, objects
from kvproxy.providers.cost_comparison import ReportedCost

_OPENAI = "OpenAI's /v1/organization/usage/completions, or the CSV of its activity"
_ANTHROPIC = "Anthropic's /v1/organizations/usage_report/messages, or the CSV of its usage"
_COLUMNS = {
    "amount_value": _OPENAI,
    "cost_usd": _ANTHROPIC,
    "Spend ($)": "LiteLLM's spend logs",
    "Spend": "LiteLLM's spend logs",
}
"""The report of usage beside a table of costs, by the column with the amount."""
_AMOUNTS = "costinbillingcurrency", "billedcost", "pretaxcost", "cost"
_COMMON = {
    "date": ("date", "day", "usagedate", "usagedatetime", "chargeperiodstart"),
    "description": (
        "metername",
        "meter",
        "chargedescription",
        "item",
        "lineitem",
        "service",
        "servicename",
        "description",
    ),
    "amount_currency": ("billingcurrency", "billingcurrencycode", "currency"),
}
"""Columns of other tables of costs, such as exports of Azure and of FOCUS, by the field that has their meaning here."""
_GROUPS = "resourcegroup", "resourcegroupname", "subaccountname"
_COMMON_USAGE = "that of the same models"
_TIMES = ("start_time", "starting_at", "usage_date_utc", "Date", "date")
_CENT = 0.01
_TOKEN_TYPES = ("", "token", "tokens")
# Items of OpenAI's bill without a model's tokens, such as `web search tool calls` or `vector store storage`.
_SERVICE = re.compile(
    r"(?!.*, (?:cached )?(?:input|output)).*(?:search|interpreter|execution|storage|container|session)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class CostReport:
    """The amounts of a report of costs, by currency.

    Attributes:
        costs: None for each unreadable amount.
        usage: name of the report that has the tokens.
    """

    costs: Sequence[tuple[str, ReportedCost | None]]
    usage: str

    def __str__(self) -> str:
        return (
            f"a report of costs{self._sum()}, which has no tokens: give the report of usage ({self.usage}), or list its amounts"
            " with --sessions --by day"
        )

    def _sum(self) -> str:
        """Return the sum by currency; empty if an amount is unreadable."""
        sums: defaultdict[str, float] = defaultdict(float)
        for currency, cost in self.costs:
            if cost is None:
                return ""
            sums[currency] += cost.amount
        return f" ({' and '.join(f'{total:,.2f} {currency}' for currency, total in sums.items())})" if sums else ""


def read_costs(rows: Sequence[JsonObject]) -> CostReport | None:
    """Return the costs in a report of costs; None for other rows."""
    if results := list(_cost_results(rows)):
        is_openai = isinstance(results[0][1]["amount"], dict)
        read = _openai_cost if is_openai else _anthropic_cost
        return CostReport([read(period, result) for period, result in results], _OPENAI if is_openai else _ANTHROPIC)
    if (column := _cost_column(rows)) is not None:
        return CostReport(_without_sum([_table_cost(row, column) for row in rows if column in row]), _COLUMNS[column])
    common = list(_common_rows(rows))
    costs = [_table_cost(row, "amount_value") for row in common if "amount_value" in row]
    return CostReport(_without_sum(costs), _COMMON_USAGE) if common else None


def _common_rows(rows: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield the rows of a table with a date, an item, an amount, and its currency; nothing for another table."""
    names = dict.fromkeys(name for row in rows for name in row)
    headings = {letters_of(name): name for name in reversed(names)}
    chosen = {
        field: next((headings[name] for name in known if name in headings), None)
        for field, known in {**_COMMON, "amount_value": _AMOUNTS}.items()
    }
    if None in chosen.values() or not {*headings}.isdisjoint((*PROMPT_FIELDS, *map(letters_of, INPUT))):
        return
    chosen["workspace"] = next((headings[name] for name in _GROUPS if name in headings), None)
    for row in rows:
        yield row | {name: row[heading] for name, heading in chosen.items() if heading is not None and heading in row}


def _without_sum(costs: Sequence[tuple[str, ReportedCost | None]]) -> list[tuple[str, ReportedCost | None]]:
    """Return the costs without a last row that lacks the date, which all rows above have, and has their sum."""
    *rows, (currency, last) = costs or [("", None)]
    above = [cost for name, cost in rows if cost is not None and currency in (name, "USD")]
    is_sum = (
        last is not None
        and last.time is None
        and len(above) == len(rows) > 0
        and all(cost.time is not None for cost in above)
        and isclose(sum(cost.amount for cost in above), last.amount, rel_tol=1e-6, abs_tol=_CENT)
    )
    return rows if is_sum else list(costs)


def _cost_results(rows: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yield the results of an admin API, each with its period."""
    for row in rows:
        for bucket in objects(row.get("data")) or [row]:
            for result in objects(bucket.get("results")) or [bucket]:
                amount = result.get("amount")
                if field(amount, "value") is not None or (isinstance(amount, str) and "currency" in result):
                    yield bucket, result


def _openai_cost(period: JsonObject, result: JsonObject) -> tuple[str, ReportedCost | None]:
    currency = field(result["amount"], "currency")
    return _cost(period | result, currency, read_amount(field(result["amount"], "value")), _openai_service(result))


def _anthropic_cost(period: JsonObject, result: JsonObject) -> tuple[str, ReportedCost | None]:
    """The API states hundredths of the currency."""
    number = read_amount(result["amount"])
    amount = None if number is None else number / 100
    return _cost(period | result, result["currency"], amount, _anthropic_service(result))


def _table_cost(row: JsonObject, column: str) -> tuple[str, ReportedCost | None]:
    service = _openai_service(row) or _anthropic_service(row)
    listed = read_amount(row.get("list_price_usd"))
    return _cost(row, row.get("amount_currency"), read_amount(row.get(column)), service, listed)


def _cost(
    row: JsonObject, currency: Json, amount: float | None, service: str, listed: float | None = None
) -> tuple[str, ReportedCost | None]:
    name = str(currency or "USD").upper()
    if amount is None:
        return name, None
    time = parse_time(next((row[name] for name in _TIMES if row.get(name)), None))
    labels = labels_of(facts_of(row, fact_headings(row)))
    cost = ReportedCost(
        amount,
        "" if time is None else datetime.fromtimestamp(time, UTC).date().isoformat(),
        service,
        listed,
        time=time,
        project=labels.project or _text(row, "workspace", "workspace_id"),
        model=_model(row, service),
        client=labels.client or _text(row, "api_key"),
        team=labels.team,
        line_item=_text(row, "line_item", "description", "cost_type" if service else "token_type"),
    )
    return name, cost


def _model(row: JsonObject, service: str) -> str:
    """Return the model of an amount; OpenAI's items begin with it, as in `gpt-5-2025-08-07, cached input`."""
    return _text(row, "model") or ("" if service else _text(row, "line_item").partition(", ")[0])


def _text(row: JsonObject, *names: str) -> str:
    return next((str(row[name]) for name in names if row.get(name)), "")


def _anthropic_service(result: JsonObject) -> str:
    kind = str(result.get("cost_type") or "")
    return "" if kind in _TOKEN_TYPES else kind


def _openai_service(result: JsonObject) -> str:
    item = str(result.get("line_item") or "")
    return item if _SERVICE.match(item) else ""


def _cost_column(rows: Sequence[JsonObject]) -> str | None:
    names = {name for row in rows for name in row}
    has_tokens = not set(fact_headings(names).values()).isdisjoint(INPUT)
    return None if has_tokens else next((column for column in _COLUMNS if column in names), None)
