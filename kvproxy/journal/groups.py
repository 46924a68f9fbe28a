"""Names the fields by which the journal groups requests."""

from typing import Literal

Group = Literal[
    "prompt", "tenant", "client", "team", "model", "tag", "reason", "layer", "api", "upstream", "proxy", "day"
]
"""A field of a record, or its UTC day; `proxy` only in a database of several proxies."""
SumsGroup = Literal["layer", "tenant", "model", "tag", "day"]
SavingsGroup = Literal[SumsGroup, "client", "team", "project"]
SavingsKey = Literal[SavingsGroup, "bill"]
"""A group of savings, or the rows of a bill."""
SpendingGroup = Literal["day", "project", "model", "client", "team"]
