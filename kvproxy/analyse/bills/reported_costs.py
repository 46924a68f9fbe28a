"""The amounts of a report of costs, and the facts in the row of an amount."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kvproxy.analyse.log_formats.fact_columns import fact_headings, facts_of, model_of, period_of, time_of
from kvproxy.analyse.log_formats.labels import labels_of
from kvproxy.analyse.log_formats.log_times import parse_time
from kvproxy.apis.json import Json, JsonMap, JsonObject
from kvproxy.apis.service_tiers import named_tier
from kvproxy.journal.groups import STANDARD_TIER
from kvproxy.providers.cost_comparison import ReportedCost
from kvproxy.units import letters_of

_ITEMS = (
    *"lineitem metername meter chargedescription item service servicename description".split(),
    *"vendor supplier product sku model lineitemusagetype skudescription".split(),
)
"""Columns with a name of an amount, without punctuation; the first one with a text counts."""
_DAY = 86_400.0
CLOUDS = "aws", "azure", "google"
"""Providers of models of other providers."""
_PROVIDERS = {
    "amazonwebservices": "aws",
    "microsoft": "azure",
    "microsoftazure": "azure",
    "googlecloud": "google",
    "googlecloudplatform": "google",
}
"""Names in exports of FOCUS, without punctuation, with the name here."""
_USED = "", "usage", "purchase"
"""Kinds of charges that may be for tokens, in exports of FOCUS."""
_OF_AZURE = {"costinbillingcurrency", "pretaxcost"}
_OF_AWS = {"lineitemunblendedcost"}
_OF_MODELS = re.compile("bedrock|vertex|gemini|generative|claude|anthropic|openai|sagemaker|marketplace", re.IGNORECASE)
"""Names of services that may bill tokens of models."""
_TOKEN_TYPES = ("", "token", "tokens", "Usage")
# Items of OpenAI's bill without a model's tokens, such as `web search tool calls` or `vector store storage`.
_SERVICE = re.compile(
    r"(?!.*, (?:cached )?(?:input|output)).*(?:search|interpreter|execution|storage|container|session)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class CostReport:
    """The amounts of a report of costs, by currency.

    Attributes:
        costs: None for each unreadable amount. The currency is empty if it is unknown.
        usage: name of the report that has the tokens.
        unreadable: numbers of the rows with unreadable cells, by the heading of their column.
        column: heading of the amounts; empty for the report of an API.
        other_columns: headings of other amounts.
    """

    costs: Sequence[tuple[str, ReportedCost | None]]
    usage: str
    unreadable: Mapping[str, Sequence[int]] = field(default_factory=dict)
    column: str = ""
    other_columns: Sequence[str] = ()

    def __str__(self) -> str:
        return (
            f"a report of costs{self._sum()}, which has no prompts: kvproxy estimate lists its amounts, and compares them with a"
            f" report of usage ({self.usage})"
        )

    def _sum(self) -> str:
        """Return the sum by currency; empty if an amount is unknown."""
        sums: defaultdict[str, float] = defaultdict(float)
        for currency, cost in self.costs:
            if cost is None or not currency:
                return ""
            sums[currency] += cost.amount
        return f" ({' and '.join(f'{total:,.2f} {currency}' for currency, total in sums.items())})" if sums else ""


def reported_cost(row: JsonObject, amount: float, listed: float | None = None, provider: str = "") -> ReportedCost:
    """Return an amount with the facts in its row.

    Args:
        listed: the amount without a discount.
        provider: the one of all rows; empty if each row may name its own.
    """
    facts = facts_of(row, fact_headings(row))
    # In the exports of clouds, it is the service that is billed, and no project.
    facts.pop("service.name", None)
    cells = {letters_of(name): cell for name, cell in row.items()}
    start = cells.get("startingat")
    time = time_of(facts) if start is None else parse_time(start)
    seconds = period.seconds if start is None and (period := period_of(facts)) is not None else 0.0
    labels, service = labels_of(facts), _service(cells)
    return ReportedCost(
        amount,
        "" if time is None or seconds > _DAY else datetime.fromtimestamp(time, UTC).date().isoformat(),
        service,
        listed,
        time=time,
        seconds=seconds,
        project=labels.project or _text(cells, "workspace", "workspaceid", *GROUPS),
        model=model_of(facts) or ("" if service else _model_in_item(_text(cells, "lineitem"))),
        client=labels.client or _text(cells, "apikey"),
        team=labels.team,
        line_item=_text(cells, *_ITEMS, "costtype" if service else "tokentype"),
        provider=provider or _provider(cells),
        service_tier=_tier(_text(cells, "servicetier", "usagetype")),
        columns={name: str(cell) for name, cell in cells.items() if isinstance(cell, str | int)},
    )


GROUPS = "resourcegroup", "resourcegroupname", "subaccountname"
"""Columns with the group of an amount in a cloud, without punctuation."""


def _model_in_item(item: str) -> str:
    """Return the model in OpenAI's name of an amount, such as `gpt-5-2025-08-07, cached input`; empty for another name."""
    name = item.partition(", ")[0]
    return "" if " " in name else name


def _service(cells: JsonMap) -> str:
    """Return what an amount is for besides tokens: an item of OpenAI's, a type of Anthropic's, or a cloud's service.

    Empty for tokens.
    """
    item, kind = _text(cells, "lineitem"), _text(cells, "costtype")
    if _SERVICE.match(item):
        return item
    return _cloud_service(cells) if kind in _TOKEN_TYPES else kind


def _cloud_service(cells: JsonMap) -> str:
    """Return the service in a category without models, or a kind of charge such as Tax; empty if it may be for models."""
    if letters_of(charge := _text(cells, "chargecategory")) not in _USED:
        return charge
    # Reports of AWS and of Google Cloud have no categories.
    if letters_of(service := _text(cells, "productproductname", "lineitemproductcode", "servicedescription")):
        return "" if _OF_MODELS.search(service) else service
    category = _text(cells, "servicecategory", "servicefamily")
    name = _text(cells, "servicename", "metercategory") or category
    may_have_models = letters_of(category).startswith(("ai", "other")) or "bedrock" in name.lower()
    return "" if not category or may_have_models else name


def _provider(cells: JsonMap) -> str:
    """Return the provider that bills an amount; empty if it is unknown."""
    name = letters_of(_text(cells, "providername", "serviceprovidername"))
    of_cloud = "azure" if not _OF_AZURE.isdisjoint(cells) else "aws" if not _OF_AWS.isdisjoint(cells) else ""
    return _PROVIDERS.get(name, name) or of_cloud


def _tier(name: str) -> str:
    return (named_tier(name) or STANDARD_TIER) if name else ""


def _text(cells: Mapping[str, Json], *names: str) -> str:
    return next((str(cells[name]) for name in names if cells.get(name)), "")
