"""Exact hits while they wait to be written.

Thousands of them wait at a time, which one thread makes and another writes. So each is packed into a few bytes: its values as
objects would be made anew for every hit, and each be fetched from another processor's cache.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kvproxy.apis.request import ApiRequest
from kvproxy.index.entry import Entry
from kvproxy.journal.draft import Draft

Equal: TypeAlias = tuple[str, str, str, str, tuple[str, ...], str, int, int]
"""What the hits of equal requests share: exact key, tenant, model, API, tags, entry, tokens of prompt and answer."""
Hit: TypeAlias = tuple[Equal, float, str, float, float]
"""An exact hit: what it shares with others, its time and request id, and the seconds until it was found and answered."""

ID_BYTES = 40
"""For a request id, with one for its length."""
PACKED = struct.Struct(f"<dddQ{ID_BYTES}p")
"""A hit: its time, the seconds until it was found and answered, its kind's number, and its request id in Latin-1."""


@dataclass(slots=True, eq=False)
class Kind:
    """What packed hits refer to by a number.

    Attributes:
        equal: what they share.
        number: the last under which hits of this kind were expected; 0 before they were.
        request_id: of the only hit of this kind, where it is too long to be packed.
    """

    equal: Equal
    number: int = 0
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Hits:
    """Exact hits one after another.

    Attributes:
        packed: each as `PACKED` has it.
        kinds: by their numbers.
    """

    packed: bytes
    kinds: Mapping[int, Kind]

    def __len__(self) -> int:
        return len(self.packed) // PACKED.size

    def __iter__(self) -> Iterator["Hits"]:
        """Each of them alone."""
        for start in range(0, len(self.packed), PACKED.size):
            yield Hits(self.packed[start : start + PACKED.size], self.kinds)


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
