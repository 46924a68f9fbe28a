"""Names the fields by which the journal groups requests, and the sums of a group."""

from dataclasses import dataclass
from typing import Literal

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
SpendingGroup = Literal["day", "project", "model", "client", "team", "service_tier"]
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
