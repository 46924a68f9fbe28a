"""Reasoning is separated from text, in any pieces."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.apis.codecs.generation import Delta, Usage
from kvproxy.engine.text.reasoning import ReasoningFormat, ReasoningParser, find_reasoning_format

FORMAT = ReasoningFormat("<think>", "</think>", 7, 8)
TEXTS = st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "ink>", " ", "\n", "a", "</"]), max_size=12)


def parse(pieces: Sequence[str], begins_in_prompt: bool = False) -> tuple[str, str]:
    parser = ReasoningParser(FORMAT, begins_in_prompt)
    parsed = [
        parser.parse(Delta(0, piece, (), (), "stop" if place == len(pieces) - 1 else None, Usage(1, 1, 0)))
        for place, piece in enumerate(pieces)
    ]
    return "".join(each.reasoning for each in parsed), "".join(each.text for each in parsed)


def split(text: str, begins_in_prompt: bool) -> tuple[str, str]:
    if not begins_in_prompt:
        if not text.lstrip().startswith(FORMAT.begin):
            return "", text
        text = text.lstrip().removeprefix(FORMAT.begin)
    reasoning, _, answer = text.partition(FORMAT.end)
    return reasoning, answer


@given(TEXTS, st.booleans(), st.data())
def test_reasoning_is_separated_alike_in_any_pieces(parts: list[str], begins: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(pieces, begins) == split(text, begins)


def test_a_piece_is_held_back_only_if_it_may_begin_a_token() -> None:
    parser = ReasoningParser(FORMAT, True)
    pieces = ["one <", "b> two</thi", "nk>answer"]
    parsed = [parser.parse(Delta(0, piece, (), (), None, Usage(1, 1, 0))) for piece in pieces]
    assert [(each.reasoning, each.text) for each in parsed] == [("one ", ""), ("<b> two", ""), ("", "answer")]


def test_completions_of_one_request_are_separated_independently() -> None:
    parser = ReasoningParser(FORMAT, False)
    deltas = [(0, "<think>a"), (1, "plain"), (0, "</think>b"), (1, " <think>text")]
    parsed = [parser.parse(Delta(index, text, (), (), None, Usage(1, 1, 0))) for index, text in deltas]
    assert [(each.reasoning, each.text) for each in parsed] == [
        ("a", ""),
        ("", "plain"),
        ("", "b"),
        ("", " <think>text"),
    ]


def test_a_prompt_begins_the_reasoning_unless_it_ends_it_too() -> None:
    assert FORMAT.begins_in([1, 2, 7])
    assert FORMAT.begins_in([1, 7, 3])
    assert not FORMAT.begins_in([1, 7, 3, 8, 3])
    assert not FORMAT.begins_in([7, 1, 2, 3])
    assert not FORMAT.begins_in([])


def test_only_visible_tokens_delimit_reasoning() -> None:
    assert find_reasoning_format({"<think>": 7, "</think>": 8, "<tool_call>": 9}) == FORMAT
    assert find_reasoning_format({"<think>": 7}) is None
