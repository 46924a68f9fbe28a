"""Reuse reported by servers in their own formats."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.apis import APIS
from kvproxy.apis.json import JsonObject
from kvproxy.apis.reported_usage import (
    TOKENS_PER_BYTE,
    UNSENT_TOKENS,
    PrefixReuse,
    ReuseReader,
    reported_reuse,
    tokens_used,
    usage_limits,
    usage_problem,
)
from kvproxy.apis.sse import Event


@pytest.mark.parametrize(
    ("whole", "told"),
    [
        ({"usage": {"prompt_tokens": 662, "prompt_tokens_details": {"cached_tokens": 645}}}, (662, 645)),
        ({"usage": {"input_tokens": 662, "input_tokens_details": {"cached_tokens": 0}}}, (662, 0)),
        ({"usage": {"prompt_tokens": 20, "prompt_cache_hit_tokens": 16, "prompt_cache_miss_tokens": 4}}, (20, 16)),
        ({"usage": {"prompt_tokens": 20}, "timings": {"cache_n": 19, "prompt_n": 1}}, (20, 19)),
        ({"usage": {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7}}, (102, 90)),
        ({"usage": {"prompt_tokens": 99, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7}}, (99, 90)),
        ({"usage": {"input_tokens": 5, "cache_read_input_tokens": 0}}, (5, 0)),
        ({"usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "prompt_tokens": 90}}, (7, 2)),
        # A contradiction is unknown.
        ({"usage": {"prompt_tokens": 20, "prompt_cache_hit_tokens": 21}}, None),
        ({"timings": {"cache_n": 9, "prompt_n": 1}}, (10, 9)),
        ({"timings": {"cache_n": 9}}, None),
        ({"timings": {"prompt_n": 9}}, None),
        ({"usage": {"prompt_tokens": True, "prompt_cache_hit_tokens": 0}}, None),
        ({"usage": {"prompt_tokens": 2**25 + 1, "prompt_cache_hit_tokens": 0}}, None),
        ({"usage": {"prompt_tokens": 2**25, "prompt_cache_hit_tokens": 0}}, (2**25, 0)),
        ({"usage": {"prompt_tokens": 10**4000, "prompt_cache_hit_tokens": 0}}, None),
        ({"usage": {"prompt_tokens": 20}}, None),
        ({"usage": {"prompt_tokens": 20, "prompt_tokens_details": None}}, None),
        ({"usage": {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": -1}}}, None),
        ({"usage": None}, None),
        ({}, None),
    ],
)
def test_formats_of_all_servers(whole: JsonObject, told: tuple[int, int] | None) -> None:
    reuse = reported_reuse(whole)
    assert (None if reuse is None else reuse[:2]) == told


def test_anthropic_reports_written_tokens_by_lifetime() -> None:
    usage: JsonObject = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7}
    assert reported_reuse({"usage": usage}) == PrefixReuse(102, 90, 7, 0)
    hour: JsonObject = {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}
    assert reported_reuse({"usage": {**usage, "cache_creation": hour}}) == PrefixReuse(102, 90, 3, 4)


@pytest.mark.parametrize(
    ("response", "reuse"),
    [
        # OpenAI (GPT-5.6 and later) and OpenRouter report writes inside the prompt.
        (
            {"usage": {"input_tokens": 7521, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 6001}}},
            PrefixReuse(7521, 0, 6001, 0),
        ),
        (
            {"usage": {"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 30}}},
            PrefixReuse(90, 40, 30, 0),
        ),
        # Gemini.
        ({"usageMetadata": {"promptTokenCount": 90, "cachedContentTokenCount": 40}}, PrefixReuse(90, 40)),
        # Gemini counts the results of its own tools beside the prompt: the total is 30 + 5 + 12 + 3.
        (
            {
                "usageMetadata": {
                    "promptTokenCount": 30,
                    "toolUsePromptTokenCount": 5,
                    "candidatesTokenCount": 12,
                    "thoughtsTokenCount": 3,
                    "cachedContentTokenCount": 7,
                    "totalTokenCount": 50,
                }
            },
            PrefixReuse(35, 7),
        ),
        # Bedrock's Converse counts both beside the input.
        (
            {"usage": {"inputTokens": 5, "outputTokens": 1, "cacheReadInputTokens": 90, "cacheWriteInputTokens": 7}},
            PrefixReuse(102, 90, 7, 0),
        ),
        (
            {
                "usage": {
                    "inputTokens": 5,
                    "cacheReadInputTokens": 90,
                    "cacheWriteInputTokens": 9,
                    "cacheDetails": [{"ttl": "5m", "inputTokens": 7}, {"ttl": "1h", "inputTokens": 2}],
                }
            },
            PrefixReuse(104, 90, 7, 2),
        ),
        # DeepSeek reports the same number twice.
        (
            {
                "usage": {
                    "prompt_tokens": 20,
                    "prompt_tokens_details": {"cached_tokens": 16},
                    "prompt_cache_hit_tokens": 16,
                    "prompt_cache_miss_tokens": 4,
                }
            },
            PrefixReuse(20, 16),
        ),
        # xAI and Mistral.
        (
            {"usage": {"prompt_tokens": 20, "prompt_tokens_details": {"text_tokens": 20, "cached_tokens": 8}}},
            PrefixReuse(20, 8),
        ),
        ({"usage": {"prompt_tokens": 20, "num_cached_tokens": 8}}, PrefixReuse(20, 8)),
        # LiteLLM, for Claude: in the details, or beside a prompt that includes them.
        (
            {
                "usage": {
                    "prompt_tokens": 130,
                    "prompt_tokens_details": {
                        "cached_tokens": 20,
                        "cache_write_tokens": 0,
                        "cache_creation_tokens": 10,
                        "cache_creation_token_details": {
                            "ephemeral_5m_input_tokens": 7,
                            "ephemeral_1h_input_tokens": 3,
                        },
                    },
                    "cache_creation_input_tokens": 10,
                    "cache_read_input_tokens": 20,
                }
            },
            PrefixReuse(130, 20, 7, 3),
        ),
        (
            {
                "usage": {
                    "prompt_tokens": 130,
                    "prompt_tokens_details": {"cached_tokens": 20, "text_tokens": 100},
                    "cache_creation_input_tokens": 10,
                    "cache_read_input_tokens": 20,
                }
            },
            PrefixReuse(130, 20, 10, 0),
        ),
        (
            {
                "usage": {
                    "prompt_tokens": 130,
                    "cache_creation_input_tokens": 10,
                    "cache_read_input_tokens": 20,
                    "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 6},
                }
            },
            PrefixReuse(130, 20, 4, 6),
        ),
    ],
)
def test_writes_and_reads_of_each_provider(response: JsonObject, reuse: PrefixReuse) -> None:
    assert reported_reuse(response) == reuse
    assert usage_problem(response) is None


@pytest.mark.parametrize(("total", "completion"), [(10 + 50 + 300, 350), (10 + 50, 50), (None, 50)])
def test_the_total_shows_whether_reasoning_is_a_part_of_the_completion(total: int | None, completion: int) -> None:
    """xAI counts it beside the completion, OpenAI as a part."""
    usage: JsonObject = {
        "prompt_tokens": 10,
        "completion_tokens": 50,
        "completion_tokens_details": {"reasoning_tokens": 300},
        "total_tokens": total,
    }
    assert APIS["chat"].prompt_and_completion_tokens({"usage": usage}) == (10, completion)
    assert tokens_used({"usage": usage}) == (10, completion)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 20, "prompt_cache_hit_tokens": 16, "prompt_cache_miss_tokens": 5},
        {"prompt_tokens": 20, "prompt_cache_hit_tokens": 16, "prompt_tokens_details": {"cached_tokens": 15}},
        {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 5}},
        {
            "input_tokens": 5,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 7,
            "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 5},
        },
    ],
)
def test_contradictory_usage_is_unknown_and_reported(usage: JsonObject) -> None:
    assert reported_reuse({"usage": usage}) is None
    assert usage_problem({"usage": usage}) is not None


def test_a_later_event_of_a_stream_may_report_more_writes() -> None:
    reader = ReuseReader()
    start = (
        b'{"message": {"usage": {"input_tokens": 4, "cache_read_input_tokens": 6, "cache_creation_input_tokens": 5,'
        b' "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 5}}}}'
    )
    reader.push(Event(start))
    assert reader.reuse == PrefixReuse(15, 6, 0, 5)
    reader.push(
        Event(b'{"usage": {"input_tokens": 4, "cache_read_input_tokens": 11, "cache_creation_input_tokens": 8}}')
    )
    assert reader.reuse == PrefixReuse(23, 11, 3, 5)


def test_a_stream_of_gemini_reports_its_reuse() -> None:
    reader = ReuseReader()
    reader.push(Event(b'{"candidates": [], "usageMetadata": {"promptTokenCount": 9, "cachedContentTokenCount": 4}}'))
    assert reader.reuse == PrefixReuse(9, 4)


def test_a_stream_reports_in_one_or_several_events() -> None:
    def read(*parts: bytes) -> list[tuple[int, int] | None]:
        reader, told = ReuseReader(), []
        for part in parts:
            reader.push(Event(part))
            told.append(None if reader.reuse is None else reader.reuse[:2])
        return told

    start = b'{"message": {"usage": {"input_tokens": 4, "cache_read_input_tokens": 6}}}'
    # Later events add fields.
    assert read(start, b'{"usage": {"output_tokens": 3, "input_tokens": null}}') == [(10, 6), (10, 6)]
    assert read(start, b'{"usage": 5}', b'"usage"', b'{"usage"', b"[DONE]") == [(10, 6)] * 5
    assert read(b'{"choices": []}', b'{"timings": {"cache_n": 9, "prompt_n": 1}}') == [None, (10, 9)]
    ended = b'{"response": {"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 8}}}}'
    assert read(ended) == [(9, 8)]


def test_a_stream_reports_its_whole_usage_after_the_output() -> None:
    def read(*parts: bytes) -> JsonObject | None:
        reader = ReuseReader()
        for part in parts:
            reader.push(Event(part))
        return reader.report

    start = b'{"type": "message_start", "message": {"usage": {"input_tokens": 4, "output_tokens": 1}}}'
    end = b'{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 48}}'
    assert read(start) is None
    assert read(start, end) == {"usage": {"input_tokens": 4, "output_tokens": 48}}
    part = b'{"choices": [{"finish_reason": null}], "usage": {"prompt_tokens": 4, "completion_tokens": 1}}'
    whole = {"prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 20}
    usage = b'"usage": {"prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 20}}'
    assert read(part) is None
    assert read(part, b'{"choices": [{"finish_reason": "stop"}], ' + usage) == {"usage": whole}
    assert read(b'{"choices": [], ' + usage) == {"usage": whole}
    assert read(b'{"type": "response.created", "response": {"usage": null}}') is None
    ended = b'{"type": "response.completed", "response": {"usage": {"input_tokens": 4, "output_tokens": 9}}}'
    assert read(ended) == {"usage": {"input_tokens": 4, "output_tokens": 9}}


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["prompt_tokens", "input_tokens", "cached_tokens", "prompt_tokens_details", "cache_n"]),
            inner,
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["usage", "timings"]), ODD))
def test_any_json_response_can_be_read(whole: JsonObject) -> None:
    told = reported_reuse(whole)
    assert told is None or 0 <= told[1] <= told[0]


def test_the_prompt_of_a_message_contains_its_cached_tokens() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7, "output_tokens": 3}
    assert APIS["messages"].prompt_and_completion_tokens({"usage": usage}) == (102, 3)
    assert APIS["messages"].prompt_and_completion_tokens({"usage": {"input_tokens": 5, "output_tokens": 3}}) == (5, 3)


def test_a_stream_keeps_only_known_numbers() -> None:
    reader = ReuseReader()
    for number in range(1_000):
        details = f'{{"cached_tokens": 3, "{number}": "{"x" * 1_000}"}}'
        event = f'{{"usage": {{"input_tokens": 9, "input_tokens_details": {details}, "{number}": "{"x" * 1_000}"}}}}'
        reader.push(Event(event.encode()))
    assert reader.reuse is not None
    assert reader.reuse[:2] == (9, 3)
    assert len(repr(reader._usage)) < 200


REQUEST: JsonObject = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("field", ["prompt_tokens", "input_tokens", "cache_read_input_tokens", "promptTokenCount"])
def test_a_prompt_has_no_more_tokens_than_its_bytes_and_a_few_contexts(field: str) -> None:
    limits = usage_limits(REQUEST, 1_000, 1_000)
    assert usage_problem({"usage": {field: UNSENT_TOKENS + 16_000}}, limits) is None
    problem = usage_problem({"usage": {field: UNSENT_TOKENS + 16_001}}, limits)
    assert problem == f"{field} is 4.21e+06, which is not a whole number from 0 to 4,210,304"
    # A body of 2 MB may have all tokens of the largest context, and a million tokens may be hidden in a response.
    assert usage_problem({"usage": {field: 2**25}}, usage_limits(REQUEST, 2_000_000, 9)) is None
    assert usage_problem({"usage": {"completion_tokens": 1_000_000}}, limits) is None
    assert usage_problem({"usage": {"completion_tokens": 2**25}}, limits) is not None


@pytest.mark.parametrize(
    "server_tools",
    [
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"type": "function"}, {"type": "code_interpreter"}]},
        {"mcp_servers": [{"url": "https://m"}]},
        {"web_search_options": {"search_context_size": "high"}},
        {"plugins": [{"id": "web"}]},
    ],
)
def test_tools_of_the_server_make_a_usage_the_sum_of_several_prompts(server_tools: JsonObject) -> None:
    usage: JsonObject = {"usage": {"input_tokens": 20_000_000, "output_tokens": 9_000_000}}
    assert usage_problem(usage, usage_limits(REQUEST | server_tools, 100, 100)) is None
    own: JsonObject = {"tools": [{"type": "custom"}, {"name": "f"}, {"type": "function"}]}
    assert usage_problem(usage, usage_limits(REQUEST | own, 100, 100)) is not None


def test_unicode_normalization_makes_no_more_bytes_than_the_limit() -> None:
    longest = max(
        len(unicodedata.normalize("NFKD", chr(code)).encode()) / len(chr(code).encode())
        for code in range(0x80, 0x30000)
        if not 0xD800 <= code < 0xE000
    )
    assert 11 <= longest <= TOKENS_PER_BYTE
