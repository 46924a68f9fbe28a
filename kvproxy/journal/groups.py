"""Names the fields by which the journal groups requests, and the sums of a group."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, get_args

TopGroup = Literal[
    "prompt",
    "tenant",
    "client",
    "team",
    "model",
    "tag",
    "reason",
    "layer",
    "service_tier",
    "upstream",
    "proxy",
    "day",
]
"""A group of `kvproxy log top`."""
Group = Literal[TopGroup, "api"]
"""A field of a record, or its UTC day; `proxy` only in a database of several proxies."""
SumsGroup = Literal["layer", "tenant", "model", "tag", "day"]
SavingsGroup = Literal[SumsGroup, "client", "team", "project"]
SavingsKey = Literal[SavingsGroup, "bill"]
"""A group of savings, or the rows of a bill."""
PERIODS = "day", "week", "month", "quarter"
SpendingGroup = Literal[
    "day", "week", "month", "quarter", "project", "model", "client", "team", "service_tier", "line_item"
]
"""A field of a bill; `line_item` only in a report of costs."""
COLUMN = "column:"
"""Beginning of a group by another column of a table, such as `column:cost center`."""
STANDARD_TIER = "standard"
"""Name of the group of requests without another service tier."""


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """Sums over the requests of a group, for example of one tenant.

    Attributes:
        name: the tenant's name, for example; of a prompt, an excerpt of its question, or else its number.
        entry: id of the stored response; None if the group is not a prompt.
        cached: number of requests with a cached response.
        computed: number of prompt tokens that the backend computed, without reused ones.
        generated: number of response tokens. Both are reported, or else estimated.
        seconds: total duration of the requests to the backend.
        prompt: number of the prompt; None if the group is not a prompt.
        differs_in: names of the request fields in which prompts with the same question differ.
        cost: the provider's price of the group's requests: 0 if all were hits; None if unknown.
        unpriced, unreported: requests that a model without a price answered, and answered ones without reported or estimated
            tokens; `cost` excludes both.
    """

    name: str
    entry: str | None
    requests: int
    cached: int
    computed: int
    generated: int
    seconds: float
    prompt: int | None = None
    differs_in: tuple[str, ...] = ()
    cost: float | None = None
    unpriced: int = 0
    unreported: int = 0

    @property
    def key(self) -> str | int:
        return self.name if self.prompt is None else self.prompt


def group_fields(by: str) -> tuple[str, ...]:
    """Return the fields of a bill in a text such as `day,model`, or `month,column:cost center`. Raises ValueError."""
    names, known = [name.strip() for name in by.split(",")], get_args(SpendingGroup)
    unknown = next((name for name in names if name not in known and not name.startswith(COLUMN)), None)
    if unknown is not None:
        raise ValueError(
            f"unknown group {unknown!r}: use one or several of {', '.join(known)}, such as day,model, or {COLUMN}NAME for a"
            " column of a table"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"by={by} names a group twice")
    return tuple(names)


def has_period(fields: Iterable[str]) -> bool:
    return not set(fields).isdisjoint(PERIODS)


def log_groups(by: str) -> str:
    """Return a text of `group_fields` without blanks around names. Raises ValueError."""
    return ",".join(group_fields(by))


def spending_groups(by: str) -> str:
    """Return a text of `group_fields` for the journal, which has no columns of tables. Raises ValueError."""
    column = next((name for name in group_fields(by) if name.startswith(COLUMN)), None)
    if column is not None:
        raise ValueError(f"{column} is a column of a table, for kvproxy estimate: records have no such group")
    return log_groups(by)


def joined_names(names: Iterable[str]) -> str:
    """Return the name of a group of several fields."""
    return ", ".join(names)


class GroupRow(Protocol):
    """A row of a report by one or several fields; `groups` has their values."""

    @property
    def name(self) -> str: ...

    @property
    def groups(self) -> Mapping[str, str]: ...


_Row = TypeVar("_Row", bound=GroupRow)


def in_order(rows: Iterable[_Row], fields: Sequence[str], size: Callable[[_Row], tuple[float, int]]) -> list[_Row]:
    """Return periods in order, and other groups with the largest first; the periods of a group follow each other."""
    ordered = sorted(rows, key=lambda row: row.name)
    first = fields[0] if fields else ""
    if not has_period(fields[1:]) and (len(fields) != 1 or first not in PERIODS):
        ordered.sort(key=size, reverse=True)
    if first in PERIODS:
        ordered.sort(key=lambda row: row.groups[first])
    return ordered
