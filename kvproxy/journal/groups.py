"""Names the fields by which the journal groups requests."""

from typing import Literal

Group = Literal["prompt", "tenant", "model", "tag", "reason", "layer", "api", "upstream"]
SumsGroup = Literal["layer", "tenant", "model", "tag", "day"]
SavingsGroup = Literal[SumsGroup, "client", "project"]
SpendingGroup = Literal["day", "project", "model", "client"]
