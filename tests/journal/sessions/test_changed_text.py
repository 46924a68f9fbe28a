"""A changed text is named by its path, in both requests' versions of a region."""

from typing import Any

import pytest

from kvproxy.journal.sessions.changed_text import find_changed_text, split_region


def tool(name: str, text: str = "Runs it.") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": text, "parameters": {"type": "object"}}}


def blocks(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


A, B, C = (tool(name) for name in "abc")


@pytest.mark.parametrize(
    ("before", "after", "path", "texts"),
    [
        ("It is 10:01.", "It is 10:02.", "", ("It is 10:01.", "It is 10:02.")),
        ([A, B, C], [C, A, B], " (the same 3, in another order)", (None, None)),
        ([A, B, C], [A, tool("b", "Edits it."), C], "[1] b.description", ("Runs it.", "Edits it.")),
        ([A, C], [A, B, C], "[1] b (added)", (None, None)),
        ([A, B, C], [A, C], "[1] b (removed)", (None, None)),
        ([A], [A, B], "[1] b (added)", (None, None)),
        (blocks("a", "b"), blocks("a", "c"), "[1].text", ("b", "c")),
        ({"role": "user", "content": "a"}, {"content": "b", "role": "user"}, "", ("a", "b")),
        ({"role": "user", "content": blocks("a")}, {"role": "user", "content": blocks("b")}, " content[0].text", ("a", "b")),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "n"}, " name (added)", (None, None)),
        ("a", blocks("b"), "", ("a", '[{"text":"b","type":"text"}]')),
    ],
)  # fmt: skip
def test_the_innermost_change_is_named(
    before: Any, after: Any, path: str, texts: tuple[str | None, str | None]
) -> None:
    changed = find_changed_text(before, after)
    assert (changed.path, (changed.before, changed.after)) == (path, texts)


@pytest.mark.parametrize(
    ("region", "path"),
    [
        *(("tools", path) for path in ("", "[1] b.description", " (the same 3, in another order)")),
        *(("system", path) for path in ("", "[1].text")),
        *((region, path) for region in ("messages[2] user", "input[0]") for path in ("", " content[0].text")),
        ("messages[2] assistant", " reasoning"),
    ],
)
def test_a_path_is_split_from_its_region(region: str, path: str) -> None:
    assert split_region(region + path) == (region, path)
