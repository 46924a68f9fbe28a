"""Export lines contain one entry each and can be imported."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.flow.imported_entry import is_servable
from kvproxy.index.errors import ImportFailed
from kvproxy.index.store.export import export_lines, export_parts, import_into, read_lines
from kvproxy.index.store.observations import Observation
from kvproxy.index.store.store_types import NewEntry
from tests.index.conftest import MakeStore
from tests.index.entries import make_entry

# Line separators of various text readers.
ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
TEXTS = st.text(st.sampled_from(f'ab"\\é漢{ENDS}'), max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(TEXTS, VALUES, max_size=4)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(BODIES, BODIES, TEXTS, st.lists(TEXTS, max_size=2), st.sampled_from((None, 2)), st.booleans()),
        max_size=4,
    )
)
def test_a_line_is_imported_unchanged(
    drawn: list[tuple[dict[str, Any], dict[str, Any], str, list[str], int | None, bool]],
) -> None:
    entries = [
        make_entry(
            prompt,
            key=f"k{number}",
            tags=tuple(tags),
            hits=number,
            last_hit=2.5,
            backend="b",
            request_id="r",
            stale_if_error=7.0,
            request=json.dumps(request, indent=indent, ensure_ascii=escaped).replace("\n", "\r\n").encode(),
            response=json.dumps(response, indent=indent, ensure_ascii=escaped).encode(),
        )
        for number, (request, response, prompt, tags, indent, escaped) in enumerate(drawn)
    ]
    lines = b"".join(entry.export_line() for entry in entries)
    assert lines.count(b"\n") == len(entries)
    assert [json.loads(line) for line in lines.split(b"\n")[:-1]] == [entry.document() for entry in entries]
    assert [each.entry.document() for each in read_lines(lines)] == [entry.document() for entry in entries]
    assert read_lines(b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n")) == read_lines(lines)


def test_an_export_preserves_large_numbers_and_deep_nesting(open_file: MakeStore) -> None:
    store, other = open_file("a.db"), open_file("b.db")
    deep = b'{"metadata": ' + b"[" * 1020 + b"]" * 1020 + b"}"
    odd = [b'{"metadata": {"id": 123456789012345678901234567890}}', b'{"a": 0.10, "b": 1e400}', deep]
    for number, request in enumerate(odd):
        store.put(make_entry(f"q{number}", request=request, created=float(number)))
    lines = list(export_lines(store))
    assert [request in line for request, line in zip(odd, lines, strict=True)] == [True] * 3
    assert import_into(other, read_lines(lines[0])) == 1
    assert other.list_entries()[0].document()["request"]["metadata"]["id"] == 123456789012345678901234567890


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("expires", 1e300, 2**40),
        ("created", -(10**30), -(2**40)),
        ("stale_if_error", 10**30, 2**40),
        ("last_hit", 1e300, 2**40),
        ("hits", 2**63, 2**40),
        ("hits", -1, 0),
        ("prompt_tokens", 10**30, 2**40),
        ("completion_tokens", -5, 0),
    ],
)
def test_an_impossible_number_is_bounded_and_keeps_no_other_entry_away(name: str, value: float, stored: float) -> None:
    """An upstream can send `max-age=1e300`, and any `usage`."""
    lines = make_entry().export_line() + json.dumps(make_entry("other").document() | {name: value}).encode()
    _, other = read_lines(lines)
    assert getattr(other.entry, name) == stored


@pytest.mark.parametrize(
    "changed",
    [
        {"created": float("inf")},
        {"expires": float("nan")},
        {"id": "\ud800"},
        {"prompt": "half \udfff"},
        {"tags": ["\ud800"]},
        {"tags": 5},
        {"request": 5},
        {"response": "text"},
        {"endpoint": "library"},
        {"endpoint": []},
        {"request": {"a": float("inf")}},
        {"id": ""},
        {"id": "\u0000"},
        {"id": "a\x1b[2J"},
        {"id": "x" * 600},
        {"key": "\u202e"},
        {"semantic": "no"},
        {"semantic": 1},
        {"semantic": None},
        {"semantic": []},
        {"key": None},
    ],
)
def test_an_invalid_entry_is_refused_with_its_line(changed: dict[str, Any]) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(ImportFailed, match="line 1"):
        read_lines(deep)
    lines = make_entry().export_line() + json.dumps(make_entry("other").document() | changed).encode()
    with pytest.raises(ImportFailed, match="line 2"):
        read_lines(lines)


@pytest.mark.parametrize(
    ("line", "reason"), [(b"text", "not JSON"), (b"[1]", "not a JSON object"), (b"{}", "the field 'id' is missing")]
)
def test_a_line_of_another_file_is_refused_with_its_reason(line: bytes, reason: str) -> None:
    with pytest.raises(ImportFailed, match=re.escape(f"line 1 is no exported response ({reason})")):
        read_lines(line)


def test_pins_and_rejections_are_carried(make_store: MakeStore, open_file: MakeStore) -> None:
    old, new = make_store(), open_file("new.db")
    entries = {name: make_entry(name, key=name, tags=(name,)) for name in ("plain", "pinned", "rejected", "approved")}
    for entry in entries.values():
        old.put(entry)
    old.pin(entries["pinned"].id, pinned=True)
    rejected, approved = entries["rejected"].id, entries["approved"].id
    old.observations.add([Observation.from_verdict(id, right=False) for id in (rejected, approved)])
    old.observations.add([Observation.from_verdict(approved, right=True)])
    # The ids are taken, so that the imported entries have other ones.
    new.put_many([NewEntry(replace(entry, key=f"other {name}")) for name, entry in entries.items()])
    assert import_into(new, read_lines(b"".join(export_lines(old)))) == 4
    imported = {entry.key: entry for entry in new.entries()}
    assert new.pinned_ids() == [imported["pinned"].id]
    assert new.observations.all_rejected_entries() == {imported["rejected"].id}
    assert imported["plain"].tags == ("plain",)


def test_an_id_of_another_entry_is_replaced(make_store: MakeStore) -> None:
    store, first = make_store(), make_entry("one").document()
    lines = [json.dumps(first | {"key": key}).encode() for key in ("a", "b", "c")]
    assert import_into(store, read_lines(lines[0])) == 1
    assert import_into(store, read_lines(b"\n".join(lines))) == 2
    ids = [entry.id for entry in store.entries()]
    assert first["id"] in ids
    assert len(set(ids)) == 3


@pytest.mark.parametrize("response", [{"choices": "x"}, {"error": "x"}, {"choices": []}, {}, {"choices": [None]}])
def test_a_response_that_no_backend_could_store_is_not_imported(
    make_store: MakeStore, response: dict[str, Any]
) -> None:
    message = {"role": "assistant", "content": "a"}
    good = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    document = make_entry("one", endpoint="chat").document() | {"request": {"model": "m", "messages": []}}
    lines = [
        json.dumps(document | {"key": key, "response": each}).encode() for key, each in enumerate_keys(good, response)
    ]
    store = make_store()
    assert import_into(store, read_lines(b"\n".join(lines)), None, is_servable) == 1
    assert [entry.key for entry in store.entries()] == ["k0"]


def enumerate_keys(*responses: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"k{number}", response) for number, response in enumerate(responses)]


def test_many_lines_are_exported_in_few_parts(open_file: MakeStore) -> None:
    store = open_file("a.db")
    store.put_many([NewEntry(make_entry(f"q{number}", key=f"k{number}")) for number in range(2_000)])
    parts = list(export_parts(store))
    assert b"".join(parts) == b"".join(export_lines(store))
    assert 2 <= len(parts) < 20
    assert list(export_parts(open_file("b.db"))) == [b""]
