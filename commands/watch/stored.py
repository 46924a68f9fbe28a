"""Stored responses: how many and how large, the newest, those that go next, and whose they are."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvproxy.commands.table import Column, digest, drawn, text
from kvproxy.commands.units import age, duration, size
from kvproxy.commands.watch.panels import WIDE, stacked
from kvproxy.commands.watch.parts import NEWEST, NEXT

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def stored(found: Mapping[str, Any], by: str, words: str, width: int) -> "Group":
    """The store's figures, and one of its lists.

    Args:
        found: see `parts.find`.
        by: which list.
        words: what the questions were searched for.
        width: cells that there are.
    """
    rows = found["rows"]
    if by == NEWEST:
        listed, told = _newest(rows, width), _told(len(rows), found["total"], words)
    elif by == NEXT:
        listed, told = _next(rows, width), _told(len(rows), found["total"], "")
    else:
        listed = drawn(
            ("responses#", "size#", "hits#", text(by)),
            ((row["entries"], size(row["bytes"]), row["hits"], row["name"]) for row in rows),
            width,
        )
        told = "Request, answer and vector of each are counted."
    return stacked(_figures(found["stats"]), told, "", listed if rows else "No response is stored.")


def _figures(stats: Mapping[str, Any]) -> str:
    entries, room = stats["max_entries"], stats["max_bytes"]
    of = f" of {entries:,}" if entries else ""
    bytes_ = size(stats["entry_bytes"]) + (f" of {size(room)}" if room else "")
    return (
        f"{stats['entries']:,}{of} responses in {stats['namespaces']:,} namespaces, {stats['hits']:,} hits, {bytes_},"
        f" {size(stats['bytes'])} on disk, {stats['expired']:,} expired ({stats['stale']:,} still given as stale)"
    )


def _told(shown: int, total: int, words: str) -> str:
    told = f"{shown:,} of {total:,} responses are shown"
    return f"{told}, with {words!r} in the question (esc: all)" if words else told


def _newest(rows: list[Mapping[str, Any]], width: int) -> "Table":
    wide = width >= WIDE
    columns: tuple[Column | str, ...] = (
        digest("id"), "age#", "hits#", "tokens#", *(("model", "tenant") if wide else ()), "kept", text("question"),
    )  # fmt: skip
    return drawn(
        columns,
        (
            (
                row["id"],
                age(row["created"]),
                row["hits"],
                row["prompt_tokens"] + row["completion_tokens"],
                *((row["model"], row["tenant"].removeprefix("client:")) if wide else ()),
                "pinned" if row["pinned"] else None,
                row["prompt"],
            )
            for row in rows
        ),
        width,
        gap=2 if wide else 1,
    )


def _next(rows: list[Mapping[str, Any]], width: int) -> "Table":
    wide = width >= WIDE
    columns: tuple[Column | str, ...] = (
        digest("id", 12 if wide else 8), "why", "worth#", "age#", "left#", "hits#", *(("tokens#",) if wide else ()),
        "size#", *(("model",) if wide else ()), text("question"),
    )  # fmt: skip
    return drawn(
        columns,
        (
            (
                row["id"],
                row["why"],
                f"{row['priority']:.3g}",
                age(row["created"]),
                duration(row["expires"] - time.time()),
                row["hits"],
                *((row["prompt_tokens"] + row["completion_tokens"],) if wide else ()),
                size(row["bytes"]),
                *((row["model"],) if wide else ()),
                row["prompt"],
            )
            for row in rows
        ),
        width,
        gap=2 if wide else 1,
    )
