"""Reads tables of costs, which have an amount of money in each row: of providers, of clouds, and of spreadsheets."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isclose

from kvproxy.analyse.bills.reported_costs import CostReport, reported_cost
from kvproxy.analyse.log_formats.amounts import currency_beside, currency_named, read_amount
from kvproxy.analyse.log_formats.fact_columns import (
    COSTS,
    DATES,
    INPUT,
    fact_headings,
    unreadable_columns,
)
from kvproxy.analyse.log_formats.log_format import PROMPT_FIELDS
from kvproxy.analyse.log_formats.log_times import TIME_FIELDS
from kvproxy.analyse.log_formats.requests import BODY_FIELDS
from kvproxy.apis.json import JsonObject
from kvproxy.providers.cost_comparison import ReportedCost
from kvproxy.settings.journal import LIST_CURRENCY
from kvproxy.units import letters_of

OPENAI_USAGE = "OpenAI's /v1/organization/usage/completions, or the CSV of its activity"
ANTHROPIC_USAGE = "Anthropic's /v1/organizations/usage_report/messages, or the CSV of its usage"
_COMMON_USAGE = "that of the same models"
_OPENAI = "amount_value"
PROVIDER_COLUMNS = {
    _OPENAI: OPENAI_USAGE,
    "cost_usd": ANTHROPIC_USAGE,
    "Spend ($)": "LiteLLM's spend logs",
    "Spend": "LiteLLM's spend logs",
}
"""The report of usage beside a provider's table of costs, by the column with the amount."""
_IN_DOLLARS = "cost_usd", "Spend ($)"
_LISTED = "list_price_usd"
_AMOUNTS = (
    *"costinbillingcurrency billedcost pretaxcost lineitemunblendedcost cost amount kosten betrag".split(),
    *"totalcost totalamount charge charges gesamtkosten".split(),
)
"""Columns with the amount in other tables, such as exports of Azure and of FOCUS, without punctuation."""
_CURRENCIES = (
    *"billingcurrency billingcurrencycode amountcurrency lineitemcurrencycode currency currencycode währung".split(),
)
OF_MONEY = re.compile(
    r"cost(?!.?(?:cent|object|type|category))|(?<!usage)(?<!usage.)amount|total|spend|charges?$|kosten(?!stelle)|betrag|price",
    re.IGNORECASE,
)
"""Headings that sound like money."""
_CENT = 0.01


@dataclass(frozen=True, slots=True)
class _CostRow:
    """An amount with the number of its row.

    Attributes:
        currency: empty if it is unknown.
        unreadable: headings of its unreadable cells.
    """

    number: int
    currency: str
    cost: ReportedCost | None
    unreadable: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The headings of a table of costs; `currency` is empty without a column."""

    amount: str
    currency: str

    def currency_of(self, row: JsonObject) -> str:
        """Return the currency of a row's amount; empty if it is unknown."""
        if self.amount in _IN_DOLLARS:
            return LIST_CURRENCY
        stated = currency_named(row.get(self.currency)) or currency_beside(row.get(self.amount))
        # LiteLLM counts in dollars.
        return stated or (LIST_CURRENCY if self.amount == "Spend" and not self.currency else "")

    def read(self, number: int, row: JsonObject) -> _CostRow:
        amount, provider = read_amount(row[self.amount]), "openai" if self.amount == _OPENAI else ""
        dates = {name: fact for name, fact in fact_headings(row).items() if fact in (*TIME_FIELDS, *DATES)}
        unreadable = [*unreadable_columns(row, dates), *([self.amount] if amount is None else [])]
        cost = None if amount is None else reported_cost(row, amount, read_amount(row.get(_LISTED)), provider)
        return _CostRow(number, self.currency_of(row), cost, unreadable)


MONEY_NAMES = frozenset((*_AMOUNTS, *map(letters_of, COSTS), "spend"))
"""Names of columns with money that may have the currency in their heading, without punctuation."""


def money_headings(names: Iterable[str]) -> set[str]:
    """Return the headings of columns with money, in tables of costs or of usage."""
    names = list(names)
    of_usage = {name for name, fact in fact_headings((*names, "currency")).items() if fact in COSTS}
    return {
        name
        for name in names
        if name in of_usage or name in (*PROVIDER_COLUMNS, _LISTED) or letters_of(name) in _AMOUNTS
    }


def read_cost_table(rows: Sequence[tuple[int, JsonObject]]) -> CostReport | None:
    """Return the costs in a numbered table of costs; None for another table."""
    if (columns := _columns_of([row for _, row in rows])) is None:
        return None
    costs = _without_sum([columns.read(number, row) for number, row in rows if columns.amount in row])
    unreadable = defaultdict[str, list[int]](list)
    for cost in costs:
        for heading in cost.unreadable:
            unreadable[heading].append(cost.number)
    usage = PROVIDER_COLUMNS.get(columns.amount, _COMMON_USAGE)
    amounts = [(cost.currency, cost.cost) for cost in costs]
    return CostReport(amounts, usage, unreadable, columns.amount, _other_amounts(rows, columns.amount))


def _other_amounts(rows: Sequence[tuple[int, JsonObject]], column: str) -> list[str]:
    """Return the headings of columns that sound like money, and have amounts, beside that of the amounts."""
    sounding = {name for _, row in rows for name in row if OF_MONEY.search(name) and name not in (column, _LISTED)}
    return sorted(name for name in sounding if any(read_amount(row.get(name)) for _, row in rows))


def lacking_columns(rows: Sequence[JsonObject]) -> list[str]:
    """Return the columns that a table with an amount lacks to be a table of costs; empty for another table."""
    names = dict.fromkeys(name for row in rows for name in row)
    letters = set(map(letters_of, names))
    if letters.isdisjoint(_AMOUNTS):
        return []
    return [
        *(["date"] if set(fact_headings(names).values()).isdisjoint(DATES) else []),
        *(["currency"] if letters.isdisjoint(_CURRENCIES) else []),
    ]


def _columns_of(rows: Sequence[JsonObject]) -> _Columns | None:
    """Return the columns of a table of costs: one of a provider, or one with a date, an amount, and a currency."""
    names = dict.fromkeys(name for row in rows for name in row)
    headings = {letters_of(name): name for name in reversed(names)}
    facts = set(fact_headings(names).values())
    if not facts.isdisjoint(INPUT) or not {*names, *headings}.isdisjoint((*PROMPT_FIELDS, *BODY_FIELDS)):
        return None
    currency = next((headings[name] for name in _CURRENCIES if name in headings), "")
    if (amount := next((name for name in PROVIDER_COLUMNS if name in names), None)) is not None:
        return _Columns(amount, currency)
    amount = next((headings[name] for name in _AMOUNTS if name in headings), None)
    if amount is None or facts.isdisjoint(DATES):
        return None
    return _Columns(amount, currency) if currency or any(currency_beside(row.get(amount)) for row in rows) else None


def _without_sum(rows: Sequence[_CostRow]) -> Sequence[_CostRow]:
    """Return the rows without a last one that lacks the date, which all rows above have, and has their sum."""
    *above, last = rows or [_CostRow(0, "", None, ())]
    costs, currencies = [row.cost for row in above if row.cost is not None], {row.currency for row in above}
    is_sum = (
        last.cost is not None
        and last.cost.time is None
        and len(costs) == len(above) > 0
        and all(cost.time is not None for cost in costs)
        and len(currencies | {last.currency} - {""}) == 1
        and isclose(sum(cost.amount for cost in costs), last.cost.amount, rel_tol=1e-6, abs_tol=_CENT)
    )
    return above if is_sum else rows
