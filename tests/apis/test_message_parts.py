"""Parts of messages: each API's format of one message has the same parts."""

import pytest

from kvproxy.apis.json import Json, JsonObject
from kvproxy.apis.message_parts import (
    MAX_PARTS,
    answer_digests,
    answer_message,
    message_parts,
    part_digests,
)

CALL: JsonObject = {"id": "1", "function": {"name": "run", "arguments": '{"prompt": "Go.", "count": 3}'}}
BLOCK: JsonObject = {"type": "tool_use", "id": "2", "name": "run", "input": {"prompt": "Go.", "count": 3}}
REASONED: JsonObject = {"reasoning_content": "Hm.", "content": "Yes."}


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (REASONED, [("reasoning", "Hm."), ("text", "Yes.")]),
        # vLLM sends both names of the field.
        (REASONED | {"reasoning": "Hm."}, [("reasoning", "Hm."), ("text", "Yes.")]),
        ({"reasoning": "Hm.", "content": None}, [("reasoning", "Hm.")]),
        ({"content": "", "tool_calls": [CALL]}, [("call", 'run {"prompt": "Go.", "count": 3}')]),
        ({"content": [{"type": "text", "text": "Yes.", "cache_control": {}}]}, [("text", "Yes.")]),
        ({"content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]}, [("reasoning", "Hm.")]),
        ({"content": [{"type": "redacted_thinking", "data": "x"}]}, [("reasoning", "x")]),
        ({"content": [BLOCK]}, [("call", 'run {"prompt":"Go.","count":3}')]),
        ("odd", []),
    ],
)
def test_a_message_is_split_into_parts(message: JsonObject, parts: list[tuple[str, str]]) -> None:
    assert list(message_parts(message)) == parts
    kinds, digests = zip(*part_digests(message), strict=True) if parts else ((), ())
    assert list(kinds) == [kind for kind, _ in parts]
    assert len(set(digests)) == len({content for _, content in parts})


def test_an_answer_is_the_only_message_of_a_response() -> None:
    choice: JsonObject = {"message": REASONED}
    assert answer_digests({"choices": [choice]}) == part_digests(REASONED)
    assert answer_message({"type": "message", "content": [BLOCK]}) == {"role": "assistant", "content": [BLOCK]}
    many: list[Json] = [{"type": "text", "text": str(number)} for number in range(MAX_PARTS + 1)]
    assert answer_digests({"type": "message", "content": many}) is None
    assert len(answer_digests({"type": "message", "content": many[:-1]}) or ()) == MAX_PARTS
    for several in ([choice, choice], [], [{"message": "odd"}]):
        assert answer_digests({"choices": several}) is None
