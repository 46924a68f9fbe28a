"""Server-sent events in chunks of any size, and replay by words."""

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.apis.sse import EventReader, encode_event, split_words

ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"])


@given(st.lists(st.tuples(st.binary(max_size=8), ENDS)), st.lists(st.integers(1, 9), min_size=1))
def test_events_do_not_depend_on_the_chunks(events: list[tuple[bytes, bytes]], sizes: list[int]) -> None:
    texts = [(text.hex().encode(), end) for text, end in events]
    stream = b"".join(b"data: " + text + end for text, end in texts)
    reader, found, start = EventReader(), [], 0
    while start < len(stream):
        size = sizes[len(found) % len(sizes)]
        found += reader.push(stream[start : start + size])
        start += size
    assert [each.data for each in found] == [text for text, _ in texts if text]


def test_line_ends_comments_and_names() -> None:
    reader = EventReader()
    assert reader.push(b": hello\r\n\r\ndata: a\r\ndata: b\r\n\r\nda") == [(b"a\nb", b"")]
    assert reader.push(b"ta:c\n\nevent: error\ndata: d\n\n") == [(b"c", b""), (b"d", b"error")]
    assert reader.push(b"\n\ndata: e\n\n\r\n\r\ndata: f\n\n") == [(b"e", b""), (b"f", b"")]
    assert (reader.push(b"data:g"), len(reader)) == ([], 6)
    assert (reader.push(b"\n"), reader.push(b"\n"), len(reader)) == ([], [(b"g", b"")], 0)
    assert encode_event({"a": 1}) == b'data: {"a":1}\n\n'
    assert encode_event(b"x", "end") == b"event: end\ndata: x\n\n"


@given(st.text())
def test_words_join_to_the_text(text: str) -> None:
    assert "".join(split_words(text)) == text


def test_words_take_linear_time() -> None:
    """Quadratic time would take hours."""
    text = " " * 1_000_000 + "x" + "\n" * 1_000_000
    assert "".join(split_words(text)) == text
