"""No two requests that could be answered differently share a key, and namespaces keep everything but the question apart."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.errors import Unkeyable
from kvproxy.proxy.backend import Call
from kvproxy.proxy.dialects import DIALECTS
from kvproxy.proxy.keys import cache_key, tenant_of

VALUES = st.one_of(st.integers(0, 3), st.booleans(), st.text("ab", max_size=2))
BODIES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["a", "b"]),
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "system", "assistant"]), "content": st.text("xy", max_size=2)}
            ),
            min_size=1,
            max_size=3,
        ),
    },
    optional={
        "temperature": st.integers(0, 2),
        "seed": VALUES,
        "vendor": VALUES,
        "stream": st.booleans(),
        "n": st.just(1),
    },
)
TENANTS = st.sampled_from([None, "Bearer a", "Bearer b"])


def call(body: dict[str, Any], tenant: str | None = None, query: str = "") -> Call:
    headers = {"authorization": tenant} if tenant else {}
    return Call("chat", body, b"", headers, tenant_of(headers), "id", query)


def relevant(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "stream"}


def typed(value: Any) -> Any:
    """A form in which 1 and True differ, as they do in JSON."""
    if isinstance(value, dict):
        return tuple(sorted((name, typed(each)) for name, each in value.items()))
    if isinstance(value, list):
        return tuple(map(typed, value))
    return (type(value).__name__, value)


@given(BODIES, BODIES, TENANTS, TENANTS)
def test_keys_are_equal_exactly_for_equal_requests(one: dict, other: dict, a: str | None, b: str | None) -> None:  # type: ignore[type-arg]
    first, second = cache_key(call(one, a), "x"), cache_key(call(other, b), "x")
    same = typed(relevant(one)) == typed(relevant(other)) and a == b
    assert (first.exact == second.exact) == same
    if first.namespace == second.namespace and first.text is not None and second.text is not None:
        assert a == b
        assert typed(relevant(one) | {"messages": one["messages"][:-1]}) == typed(
            relevant(other) | {"messages": other["messages"][:-1]}
        )


def test_the_order_of_fields_is_irrelevant_and_the_backend_is_not() -> None:
    body = {"model": "a", "messages": [{"role": "user", "content": "x"}]}
    turned = {"messages": [{"content": "x", "role": "user"}], "model": "a"}
    assert cache_key(call(body), "x") == cache_key(call(turned), "x")
    assert cache_key(call(body), "x").namespace != cache_key(call(body), "y").namespace


def test_every_header_with_credentials_makes_a_tenant() -> None:
    names = ("authorization", "api-key", "x-api-key", "openai-organization", "openai-project", "cookie")
    tenants = {tenant_of({name: value}) for name in names for value in ("a", "b")}
    assert len(tenants) == 2 * len(names)
    assert tenant_of({}) == tenant_of({"user-agent": "a"}) == "public"


def test_the_query_is_part_of_the_key_and_depth_is_bounded() -> None:
    body = {"model": "a", "messages": [{"role": "user", "content": "x"}]}
    assert cache_key(call(body, query="v=1"), "x").exact != cache_key(call(body, query="v=2"), "x").exact
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    for vendor in (deep, 2**64):
        with pytest.raises(Unkeyable, match="nested"):
            cache_key(call(body | {"vendor": vendor}), "x")


def test_what_is_never_matched_by_similarity() -> None:
    plain = {"model": "a", "messages": [{"role": "user", "content": "a question"}]}
    assert cache_key(call(plain), "x").text == "a question"
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]
    for change in (
        {"tools": [{}]},
        {"logprobs": True},
        {"prompt_logprobs": 0},
        {"return_token_ids": True},
        {"n": 2},
        {"response_format": {"type": "json_object"}},
        {"messages": image},
        {"messages": [*image, *plain["messages"]]},
        {"messages": [{"role": "assistant", "content": "a"}]},
        {"messages": [{"role": "user", "content": "word " * 400}]},
    ):
        assert cache_key(call(plain | change), "x").text is None


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_log_probabilities_of_prompts_are_kept_as_whole_answers_only(endpoint: str) -> None:
    """A stored answer is replayed as a stream too, where servers refuse them: an upstream must be asked."""
    dialect = DIALECTS[endpoint]
    for body, cacheable in (
        ({"prompt_logprobs": 1}, True),
        ({"prompt_logprobs": 0, "stream": True}, False),
        ({"prompt_logprobs": None, "stream": True}, True),
        ({"stream": True}, True),
    ):
        assert dialect.cacheable(body) == cacheable  # type: ignore[arg-type]
