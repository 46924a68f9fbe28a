"""Names the fields by which the journal groups requests."""

from typing import Literal

Group = Literal["prompt", "tenant", "model", "tag", "reason", "layer", "api", "upstream"]
SavingsGroup = Literal["layer", "tenant", "model", "tag", "day"]
SpendingGroup = Literal["day", "project", "model", "client"]
