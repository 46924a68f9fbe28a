"""Calls of tools: learned from chat templates, held to by a grammar, and read back whatever pieces they come in."""

import json
from itertools import pairwise
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from kvproxy.apis.codecs.generation import Delta, GenerationRequest, Grammar, SamplingParams, Usage
from kvproxy.demo import model_path
from kvproxy.engine.sampler import SampledToken
from kvproxy.engine.scheduler.sequence import SequenceState
from kvproxy.engine.text.tool_calls import ToolCallFormat, ToolCallParser, learn_tool_call_format
from tests.engine.templates import HERMES, LLAMA, MISTRAL, NAMELESS, PLAIN, PYTHONIC

SPECIAL = {"[TOOL_CALLS]": 5, "<|im_start|>": 6, "<|im_end|>": 7}


def form_of(template: str) -> ToolCallFormat | None:
    compiled = jinja2.Environment().from_string(template)

    def render(messages: Any, tools: Any, speaks: bool) -> str:
        return compiled.render(messages=messages, tools=tools, add_generation_prompt=speaks)

    return learn_tool_call_format(render, SPECIAL)


@pytest.mark.parametrize(
    ("template", "begin", "middle", "between", "end"),
    [
        (
            HERMES,
            '<tool_call>\n{"name": "',
            '", "arguments": ',
            '}\n</tool_call>\n<tool_call>\n{"name": "',
            "}\n</tool_call>",
        ),
        (LLAMA, '{"name": "', '", "parameters": ', '}; {"name": "', "}"),
        (MISTRAL, '[TOOL_CALLS][{"name": "', '", "arguments": ', '}, {"name": "', "}]"),
    ],
)
def test_a_template_tells_how_it_writes_calls(template: str, begin: str, middle: str, between: str, end: str) -> None:
    assert form_of(template) == ToolCallFormat(begin, middle, between, end, SPECIAL)


@pytest.mark.parametrize("template", [PLAIN, PYTHONIC, NAMELESS], ids=["no tools", "no JSON", "no names"])
def test_a_template_that_cannot_say_calls_has_no_form(template: str) -> None:
    assert form_of(template) is None


SCHEMAS: dict[str, Any] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "odd-näme": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False},
}


def accepts(tokenizer: LLTokenizer, grammar: str, text: str) -> bool:
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(str(model_path() / "tokenizer.json"))


@pytest.mark.parametrize("template", [HERMES, LLAMA])
def test_the_grammar_takes_calls_of_the_tools_and_no_others(template: str, tokenizer: LLTokenizer) -> None:
    form = form_of(template)
    assert form is not None

    def call(name: str, arguments: str) -> str:
        return name + form.middle + arguments

    one, other = call("weather", '{"city": "Bern"}'), call("odd-näme", '{"n": 3}')
    good = [form.begin + one + form.end, form.begin + other + form.end]
    both = form.begin + one + form.between + other + form.end
    bad = [
        form.begin + call("other", "{}") + form.end,
        form.begin + call("weather", '{"city": 3}') + form.end,
        form.begin + call("weather", "{}") + form.end,
        form.begin + call("odd-näme", '{"m": 3}') + form.end,
        form.begin + one,
    ]
    required = form.grammar(SCHEMAS, required=True, parallel=True).text
    single = form.grammar(SCHEMAS, required=True, parallel=False).text
    free = form.grammar(SCHEMAS, required=False, parallel=True).text
    for text in good:
        assert all(accepts(tokenizer, grammar, text) for grammar in (required, single, free))
    assert [accepts(tokenizer, grammar, both) for grammar in (required, single, free)] == [True, False, True]
    for text in bad:
        assert not any(accepts(tokenizer, grammar, text) for grammar in (required, single, free))
    for text in ("It rains.", "", "1 < 2 {x}\nand more"):
        assert [accepts(tokenizer, grammar, text) for grammar in (required, free)] == [False, True]


def pieces_of(text: str, cuts: list[int]) -> list[Delta]:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[start:end] for start, end in pairwise(places)]
    return [Delta(0, part, (), (), None, Usage(1, 1, 0)) for part in parts]


ARGUMENTS = st.dictionaries(
    st.text(max_size=5), st.text(max_size=8) | st.integers() | st.lists(st.booleans()), max_size=3
)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([HERMES, LLAMA, MISTRAL]),
    st.lists(st.tuples(st.sampled_from(["weather", "odd-näme"]), ARGUMENTS), min_size=1, max_size=3),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_calls_are_read_whatever_pieces_they_come_in(
    template: str, calls: list[tuple[str, dict[str, Any]]], cuts: list[int]
) -> None:
    form = form_of(template)
    assert form is not None
    written = [name + form.middle + json.dumps(arguments) for name, arguments in calls]
    reader = ToolCallParser(form)
    read = [
        reader.parse(piece)
        for piece in pieces_of(form.visible_text(form.begin + form.between.join(written) + form.end), cuts)
    ]
    assert "".join(piece.text for piece in read) == ""
    found = [(call.name, json.loads(call.arguments)) for piece in read for call in piece.calls]
    assert found == calls


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.lists(st.integers(0, 50), max_size=5))
def test_other_text_passes_as_it_is(text: str, cuts: list[int]) -> None:
    form = form_of(HERMES)
    assert form is not None
    reader = ToolCallParser(form)
    read = [reader.parse(piece) for piece in pieces_of("." + text, cuts)]
    assert "".join(piece.text for piece in read) == "." + text
    assert not any(piece.calls for piece in read)


class Characters:
    eos_ids = frozenset[int]()
    tool_call_format = form_of(HERMES)

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("text", "has_tools", "awaits_user"),
    [("<tool_call>", True, False), ("It rains.", True, True), ("<b>", False, True)],
)
def test_a_session_awaits_a_person_unless_its_answer_is_a_call(text: str, has_tools: bool, awaits_user: bool) -> None:
    grammar = Grammar("lark", "") if has_tools else None
    tokenizer: Any = Characters()
    request = GenerationRequest("one", (1,), SamplingParams(), grammar=grammar)
    sequence = SequenceState(request, 0, 20, tokenizer, lambda delta: None, lambda error: None)
    for letter in text:
        sequence.append(SampledToken(ord(letter)))
        sequence.send()
    assert sequence.cache_request.awaits_user is awaits_user
