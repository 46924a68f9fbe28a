"""Exact hits while they wait to be written, in plain values.

Thousands of them wait at a time: objects would keep the garbage collector busy, and the processor would have to fetch each from
afar when it is written.
"""

from collections.abc import Iterator
from typing import TypeAlias

from kvproxy.apis.request import ApiRequest
from kvproxy.index.entry import Entry
from kvproxy.journal.draft import Draft

Equal: TypeAlias = tuple[str, str, str, str, tuple[str, ...], str, int, int]
"""What the hits of equal requests share: exact key, tenant, model, API, tags, entry, tokens of prompt and answer."""
Hit: TypeAlias = tuple[Equal, float, str, float, float]
"""An exact hit: what it shares with others, its time and request id, and the seconds until it was found and answered."""
VALUES = 5
"""How many values a hit has."""


class Hits:
    """Exact hits one after another.

    Attributes:
        values: of all of them, `VALUES` each.
    """

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: list[Equal | float | str] = []

    def __len__(self) -> int:
        return len(self.values) // VALUES

    def __iter__(self) -> Iterator["Hits"]:
        """Each of them alone."""
        for start in range(0, len(self.values), VALUES):
            alone = Hits()
            alone.values = self.values[start : start + VALUES]
            yield alone


def equal_of(tenant: str, request: ApiRequest, key: str, entry: Entry) -> Equal:
    """What the hits on an entry by requests equal to this one share."""
    tags = request.control.tags
    return key, tenant, entry.model, request.api.name, tags, entry.id, entry.prompt_tokens, entry.completion_tokens


def hit_of(draft: Draft) -> Hit | None:
    """The plain values of an exact hit; None of any other request."""
    entry = draft.hit
    if entry is None or draft.request is None or draft.key is None or draft.layer != "exact" or draft.stale is not None:
        return None
    looked, seconds = draft.looked - draft.began, draft.first - draft.began
    return equal_of(draft.tenant, draft.request, draft.key, entry), draft.time, draft.request_id, looked, seconds
