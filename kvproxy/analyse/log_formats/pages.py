"""Finds the pages of an export or of a report that have a next page, which no file has."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvproxy.apis.json import Json, JsonObject, field, objects

_PERIODS = ("start_time", "end_time"), ("starting_at", "ending_at")
"""Fields with the times of a period, in the admin APIs of OpenAI and of Anthropic."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list, in a file.

    Attributes:
        has_more: further pages follow it.
        next_page: the value that selects the next page; empty if it is not stated.
        start, end: beginning and end of its periods; None for a list of other objects.
    """

    file: str
    has_more: bool
    next_page: str = ""
    start: Json = None
    end: Json = None


def is_page(document: JsonObject) -> bool:
    return isinstance(document.get("has_more"), bool)


def read_page(file: str, document: JsonObject) -> Page:
    periods = objects(document.get("data"))
    times = (
        (first, last)
        for start, end in _PERIODS
        if periods and (first := field(periods[0], start)) is not None and (last := field(periods[-1], end)) is not None
    )
    first, last = next(times, (None, None))
    return Page(file, document["has_more"] is True, str(document.get("next_page") or ""), first, last)


def unfinished_pages(pages: Iterable[Page]) -> Sequence[Page]:
    """Return the pages whose next page is missing.

    The next page begins when a page ends. A list without periods is complete if it has a last page.
    """
    pages = list(pages)
    starts = {page.start for page in pages if isinstance(page.start, str | int | float)}
    has_last = any(page.start is None and not page.has_more for page in pages)
    return [page for page in pages if page.has_more and not (has_last if page.end is None else page.end in starts)]
