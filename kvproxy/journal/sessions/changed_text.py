"""Finds the innermost text in which two versions of a region differ, such as the description of a tool."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.apis.json import Json, JsonObject, dumps, field
from kvproxy.blocks.divergence import common_prefix_length

_MAX_PATH = 80
_REGION = re.compile(r"(?:messages|input)\[\d+\](?: \w+(?![\w\[.]))?|[^\[ ]+")


@dataclass(frozen=True, slots=True)
class ChangedText:
    """The first text that differs, in the order of sorted names.

    Attributes:
        path: its path within the region, such as `[2] run_shell.description` in the tools and ` content[1].text` in a message;
            empty for the whole region and for the content of a message. It says if only one version has an item, or if the
            order changed.
        before, after: the text of both versions; None if there is only one version, or another order.
    """

    path: str
    before: str | None = None
    after: str | None = None


def find_changed_text(before: Json, after: Json) -> ChangedText:
    path = ""
    while True:
        if isinstance(before, dict) and isinstance(after, dict) and before != after:
            name = next(name for name in sorted({*before, *after}) if before.get(name) != after.get(name))
            old, new = before.get(name), after.get(name)
            is_added, is_removed = name not in before, name not in after
            before, after = _as_parts(old, new), _as_parts(new, old)
            path += _step(name, path, after)
            if is_added or is_removed:
                return ChangedText(_shorten(path) + (" (added)" if is_added else " (removed)"))
        elif isinstance(before, list) and isinstance(after, list) and before != after:
            index = common_prefix_length(before, after)
            if (note := _changed_items(before, after, index)) is not None:
                return ChangedText(_shorten(path) + note)
            path += _item_label(after, index)
            before, after = before[index], after[index]
        else:
            return ChangedText(_shorten(path), text_of_region(before), text_of_region(after))


def _as_parts(value: Json, other: Json) -> Json:
    """Return a text as the first part of a message if its other version has several parts, such as an image."""
    if not isinstance(value, str) or not isinstance(other, list) or len(other) < 2:
        return value
    first = other[0]
    return [{**first, "text": value}] if isinstance(first, dict) and "text" in first else value


def change_place(region: str | None, place: int | None) -> str | None:
    """Format the first changed text of a turn (see `Turn`), and its character."""
    return region if region is None or place is None else f"{region}, character {place:,}"


def split_region(label: str) -> tuple[str, str]:
    """Split the name of a region with a path into both."""
    match = _REGION.match(label)
    end = match.end() if match else len(label)
    return label[:end], label[end:]


def text_of_region(value: Json) -> str:
    """Return a text, or JSON with sorted names, as which regions are compared."""
    return value if isinstance(value, str) else dumps(value, sort_keys=True).decode("utf-8", "replace")


def _step(name: str, path: str, value: Json) -> str:
    if name == "function" or (name == "content" and not path and isinstance(value, str)):
        return ""
    return f".{name}" if path else f" {name}"


def _changed_items(before: Sequence[Json], after: Sequence[Json], index: int) -> str | None:
    """Describe a new order, or an added or removed item; None if the items at `index` are versions of each other."""
    old, new = ([dumps(item, sort_keys=True) for item in items] for items in (before, after))
    if sorted(old) == sorted(new):
        return f" (the same {len(new)}, in another order)"
    if index == len(before) or (len(after) > len(before) and not set(old) - set(new)):
        return f"{_item_label(after, index)} (added)"
    if index == len(after) or (len(before) > len(after) and not set(new) - set(old)):
        return f"{_item_label(before, index)} (removed)"
    return None


def _item_label(items: Sequence[Json], index: int) -> str:
    item = items[index]
    name = _tool_name(item) if isinstance(item, dict) else None
    return f"[{index}] {name}" if name else f"[{index}]"


def _tool_name(item: JsonObject) -> str | None:
    name = item.get("name") or field(item.get("function"), "name")
    return name if isinstance(name, str) else None


def _shorten(path: str) -> str:
    return path if len(path) <= _MAX_PATH else f"{path[: _MAX_PATH - 3]}..."
