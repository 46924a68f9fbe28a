"""What servers report of their own caches, in their own forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.apis.assemblers.reported import reported_reuse
from kvproxy.apis.json import JsonObject


@pytest.mark.parametrize(
    ("whole", "told"),
    [
        ({"usage": {"prompt_tokens": 662, "prompt_tokens_details": {"cached_tokens": 645}}}, (662, 645)),
        ({"usage": {"input_tokens": 662, "input_tokens_details": {"cached_tokens": 0}}}, (662, 0)),
        ({"usage": {"prompt_tokens": 20, "prompt_cache_hit_tokens": 16, "prompt_cache_miss_tokens": 4}}, (20, 16)),
        ({"usage": {"prompt_tokens": 20}, "timings": {"cache_n": 19, "prompt_n": 1}}, (20, 19)),
        (
            {"usage": {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7}},
            (102, 90),
        ),
        ({"usage": {"input_tokens": 5, "cache_read_input_tokens": 0}}, (5, 0)),
        ({"usage": {"prompt_tokens": 20}}, None),
        ({"usage": {"prompt_tokens": 20, "prompt_tokens_details": None}}, None),
        ({"usage": {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": -1}}}, None),
        ({"usage": None}, None),
        ({}, None),
    ],
)
def test_every_form(whole: JsonObject, told: tuple[int, int] | None) -> None:
    assert reported_reuse(whole) == told


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
def test_no_answer_is_too_odd(whole: JsonObject) -> None:
    told = reported_reuse(whole)
    assert told is None or 0 <= told[1] <= told[0]
