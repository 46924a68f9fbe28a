"""Streams and objects are two forms of one thing."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.proxy.sse import Assembler, EventReader, event, replay

CHOICES = st.lists(
    st.tuples(st.text(max_size=30), st.sampled_from(["stop", "length"]), st.booleans()), min_size=1, max_size=3
)


def chat(choices: list[tuple[str, str, bool]]) -> dict[str, Any]:
    whole: dict[str, Any] = {"id": "i", "object": "chat.completion", "model": "m", "choices": []}
    for index, (text, reason, calls) in enumerate(choices):
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}} for _ in range(2)
            ]
        whole["choices"].append({"index": index, "message": message, "finish_reason": reason})
    return whole | {"usage": {"prompt_tokens": 3}}


@given(CHOICES, st.data())
def test_replay_and_assembly_are_inverse(choices: list[tuple[str, str, bool]], data: st.DataObject) -> None:
    whole = chat(choices)
    stream = b"".join(replay(whole, include_usage=True))
    reader, assembler = EventReader(), Assembler()
    start = 0
    while start < len(stream):
        end = start + data.draw(st.integers(1, 200))
        for item in reader.push(stream[start:end]):
            assembler.push(item)
        start = end
    assert reader.clean
    assert assembler.result() == whole


@given(st.text(max_size=40))
def test_completions_too(text: str) -> None:
    whole = {"id": "i", "object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
    assembler = Assembler()
    for chunk in replay(whole, include_usage=False):
        assembler.push(chunk[6:-2])
    assert assembler.result() == whole


def test_errors_and_missing_ends_give_nothing() -> None:
    parts = [chunk[6:-2] for chunk in replay(chat([("a b", "stop", False)]), include_usage=False)]
    for bad in (parts[:-1], parts[:-2] + parts[-1:], [b"{no json", *parts], [b'{"error": {}}', *parts], [b"[DONE]"]):
        assembler = Assembler()
        for part in bad:
            assembler.push(part)
        assert assembler.result() is None


def test_line_ends_and_comments() -> None:
    reader = EventReader()
    assert reader.push(b": hello\r\n\r\ndata: a\r\ndata: b\r\n\r\nda") == [b"a\nb"]
    assert not reader.clean
    assert reader.push(b"ta:c\n\n") == [b"c"]
    assert event({"a": 1}) == b'data: {"a":1}\n\n'
