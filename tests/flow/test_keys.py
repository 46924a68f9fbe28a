"""No two requests that could be answered differently share a key, and namespaces keep everything but the question apart."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import ApiRequest
from kvproxy.exchange import CacheKey
from kvproxy.flow.cache_keys import cache_key
from kvproxy.flow.tenants import tenant_of
from kvproxy.settings.access import TENANT_HEADERS
from kvproxy.settings.rules import RuleSettings
from tests.requests import api_request

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
        "temperature": st.one_of(st.integers(0, 2), st.sampled_from([0.0, 1.0, 0.5])),
        "seed": VALUES,
        "vendor": VALUES,
        "stream": st.booleans(),
        "n": st.sampled_from([1, 2]),
    },
)
TENANTS = st.sampled_from([None, "Bearer a", "Bearer b"])


def call(body: dict[str, Any], tenant: str | None = None, query: str = "") -> ApiRequest:
    return api_request(body, headers={"authorization": tenant} if tenant else {}, query=query)


def relevant(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "stream" and (name, value) != ("n", 1)}


def typed(value: Any) -> Any:
    """A form in which 1 and True differ, as they do in JSON; 1 and 1.0 do not."""
    if isinstance(value, dict):
        return tuple(sorted((name, typed(each)) for name, each in value.items()))
    if isinstance(value, list):
        return tuple(map(typed, value))
    return ("number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__, value)


@given(BODIES, BODIES, TENANTS, TENANTS)
def test_keys_are_equal_exactly_for_equal_requests(one: dict, other: dict, a: str | None, b: str | None) -> None:  # type: ignore[type-arg]
    first, second = cache_key(call(one, a), "x"), cache_key(call(other, b), "x")
    same = typed(relevant(one)) == typed(relevant(other)) and a == b
    assert (first.exact == second.exact) == same
    if (
        first.semantic.namespace == second.semantic.namespace
        and first.semantic.text is not None
        and second.semantic.text is not None
    ):
        assert a == b
        assert typed(relevant(one) | {"messages": one["messages"][:-1]}) == typed(
            relevant(other) | {"messages": other["messages"][:-1]}
        )


def test_backend_and_query_are_part_of_the_key() -> None:
    body = {"model": "a", "messages": [{"role": "user", "content": "x"}]}
    turned = {"messages": [{"content": "x", "role": "user"}], "model": "a"}
    assert cache_key(call(body), "x") == cache_key(call(turned), "x")
    assert cache_key(call(body), "x").semantic.namespace != cache_key(call(body), "y").semantic.namespace
    assert cache_key(call(body, query="v=1"), "x").exact != cache_key(call(body, query="v=2"), "x").exact


def test_integers_beyond_64_bits_are_part_of_the_key() -> None:
    """Amounts in wei in the input of a tool, for example."""
    keys = [cache_key(call({"model": "a", "messages": [], "vendor": 10**20 + extra}), "x").exact for extra in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]


def test_deep_values_are_part_of_the_key() -> None:
    keys = []
    for levels in (300, 300, 301):
        deep: list[Any] = []
        for _ in range(levels):
            deep = [deep]
        keys.append(cache_key(call({"model": "a", "messages": [], "vendor": deep}), "x").exact)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"temperature": 1},
        {"top_p": 0.1},
        {"seed": "1"},
        {"max_tokens": 2},
        {"stop": ["x"]},
        {"frequency_penalty": 1},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "g"}}]},
        {"vendor_option": 1},
        *({"system": text} for text in ("Be brief. ", "Be brief.\n", "")),
        *({"turns": turns} for turns in ((), ("Hi", "No."), ("Hi", ""), ("Hi", "Yes?", "Hi", "Yes?"))),
    ],
    ids=lambda change: str(change).replace("\\", ""),
)
def test_no_similar_question_shares_a_namespace_if_anything_else_differs(change: dict[str, Any]) -> None:
    options = {"temperature": 0.5, "top_p": 0.9, "seed": 1, "max_tokens": 1, "stop": "x", "vendor_option": True}
    options |= {"response_format": {"type": "text"}, "tools": [{"type": "function", "function": {"name": "f"}}]}
    for more in ({}, options):
        plain = {"system": "Be brief.", "turns": ("Hi", "Yes?")} | more

        def body(system: str, turns: tuple[str, ...], question: str, **fields: Any) -> dict[str, Any]:
            return conversation(*turns, question, system=system) | fields

        one = cache_key(call(body(question="one", **plain)), "x")
        same = cache_key(call(body(question="two", **plain, stream=True, user="u", metadata={"a": 1})), "x")
        other = cache_key(call(body(question="one", **plain | change)), "x")
        assert one.semantic.namespace == same.semantic.namespace != other.semantic.namespace
        assert one.exact not in (same.exact, other.exact)


def test_every_header_with_credentials_makes_a_tenant() -> None:
    names = TENANT_HEADERS
    assert {"x-goog-api-key", "x-litellm-api-key", "x-auth-token", "x-forwarded-user", "cookie"} <= set(names)
    tenants = {name: [tenant_of({name: value}) for value in ("a", "b")] for name in names}
    alike = [name for name in names if name.endswith("api-key")]
    assert all(tenants[name] == tenants["x-api-key"] for name in alike)
    assert len({tenant for pair in tenants.values() for tenant in pair}) == 2 * (len(names) - len(alike) + 1)
    assert tenant_of({}) == tenant_of({"user-agent": "a"}) == "public"


def test_a_key_makes_one_tenant_whichever_header_has_it() -> None:
    tenant = tenant_of({"authorization": "Bearer a"})
    alike = {"authorization": "bearer  a"}, {"x-api-key": "a"}, {"x-api-key": "a", "authorization": "Bearer a"}
    assert {tenant_of(headers) for headers in alike} == {tenant}
    others = {"x-api-key": "b"}, {"x-api-key": "b", "authorization": "Bearer a"}, {"authorization": "Basic a"}
    users = {"x-api-key": "a", "x-forwarded-user": "u"}, {"x-auth-token": "a"}
    assert len({tenant, *map(tenant_of, (*others, *users))}) == 6
    # Only these headers name a user.
    assert tenant_of({"x-api-key": "a"}, ["authorization"]) == "public"


def conversation(*turns: str, system: str = "s", **fields: Any) -> dict[str, Any]:
    """Return a body with the turns of the user and the assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(turns)]
    return {"model": "m", "messages": [{"role": "system", "content": system}, *messages], **fields}


def test_namespaces_of_conversations_omit_earlier_questions_alone() -> None:
    def key(body: dict[str, Any], tenant: str | None = None, on: bool = True) -> CacheKey:
        return cache_key(call(body, tenant), "x", conversations=on)

    first = key(conversation("one", "1", "two", "2", "three"))
    assert first.semantic.text == "one \u23ce 1 \u23ce two \u23ce 2 \u23ce three"
    assert first.semantic.namespace == key(conversation("eins", "1", "zwei", "2", "drei")).semantic.namespace
    for body in (
        conversation("one", "1", "two", "2.", "three"),
        conversation("one", "1", "three"),
        conversation("three"),
        conversation("one", "1", "two " * 300, "2", "three"),
    ):
        assert key(body).semantic.namespace == first.semantic.namespace
        assert key(body).semantic.text != first.semantic.text
    for body in (
        conversation("one", "1", "two", "2", "three", system="t"),
        conversation("one", "1", "two", "2", "three", temperature=0.5),
        conversation("one", "1", "two " * 4000, "2", "three"),
        conversation("one", "1", "two \u23ce two", "2", "three"),
        conversation("one", "1", "two \u2764\ufe0f", "2", "three"),
    ):
        assert key(body).semantic.namespace != first.semantic.namespace
    assert key(conversation("one", "1", "two", "2", "three"), "Bearer a").semantic.namespace != first.semantic.namespace
    # A question that was not answered is a part of the namespace.
    unanswered = [{"role": "user", "content": text} for text in ("one", "two")]
    assert key({"model": "m", "messages": unanswered}).semantic.text == "two"
    off = key(conversation("one", "1", "two"), on=False)
    assert off.semantic.text == "two"
    assert off.semantic.namespace != key(conversation("eins", "1", "two"), on=False).semantic.namespace


@pytest.mark.parametrize(("name", "field"), [("messages", "messages"), ("responses", "input")])
def test_other_apis_have_conversations_too(name: ApiName, field: str) -> None:
    def key(question: str) -> CacheKey:
        turns = [("user", question), ("assistant", "1"), ("user", "two")]
        body = {"model": "m", field: [{"role": role, "content": text} for role, text in turns]}
        return cache_key(api_request(body, name), "x", conversations=True)

    assert key("one").semantic.text == "one \u23ce 1 \u23ce two"
    assert key("one").semantic.namespace == key("uno").semantic.namespace
    assert key("one").exact != key("uno").exact


def test_what_is_never_matched_by_similarity() -> None:
    def said(text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}]}

    plain = {"model": "a", **said("a question")}
    for question in ("a question", "x" * 800, "\u00e9" * 400):
        assert cache_key(call(plain | said(question)), "x").semantic.text == question
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
        said("x" * 801),
        said("\u00e9" * 400 + "x"),
        said("one \u23ce two"),
    ):
        assert cache_key(call(plain | change), "x").semantic.text is None


def test_markers_of_the_prefix_cache_are_no_part_of_an_answer() -> None:
    """They mark the end of a cached prefix at any place; a tool's parameter may have the same name."""
    mark = {"cache_control": {"type": "ephemeral"}}
    block = {"type": "text", "text": "a question"}
    plain = {
        "model": "a",
        "system": [{"type": "text", "text": "s"}],
        "tools": [{"name": "f", "input_schema": {"properties": {"cache_control": {"type": "string"}}}}],
        "messages": [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]},
            {"role": "user", "content": [block]},
        ],
    }
    marked: dict[str, Any] = {
        **plain,
        **mark,
        "prompt_cache_options": {},
        "prompt_cache_retention": "24h",
        "diagnostics": {"on": True},
        "system": [plain["system"][0] | mark],  # type: ignore[index]
        "tools": [plain["tools"][0] | mark],  # type: ignore[index]
        "messages": [
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block | mark]} | mark],
            },
            {"role": "user", "content": [block | mark]} | mark,
        ],
    }
    assert cache_key(call(marked), "x") == cache_key(call(plain), "x")
    asked = call(marked)
    escaped = dataclasses.replace(asked, raw=asked.raw.replace(b"cache_control", b"c\\u0061che_control"))
    assert escaped.raw != asked.raw
    assert cache_key(escaped, "x") == cache_key(asked, "x")
    other = {**plain, "tools": [{"name": "f", "input_schema": {"properties": {}}}]}
    assert cache_key(call(other), "x").exact != cache_key(call(plain), "x").exact


def test_a_breakpoint_that_the_proxy_removes_is_no_part_of_a_key() -> None:
    """A rule sends fewer marks than the client if nothing reads the prefixes that it writes."""
    block = {"type": "text", "text": "s"}
    plain: dict[str, Any] = {"model": "a", "system": [block], "messages": [{"role": "user", "content": "x"}]}
    sent = api_request(plain | {"system": [block | {"cache_control": {"type": "ephemeral"}}]}, "messages")
    removed = sent.with_cache_fields(plain, "breakpoints:none")
    assert cache_key(removed, "x") == cache_key(sent, "x") == cache_key(api_request(plain, "messages"), "x")


def test_tool_calls_without_text_are_equal() -> None:
    """A stream's client repeats an empty text; clients of whole responses repeat null, or no content."""

    def digest(turn: dict[str, Any]) -> str:
        return cache_key(call({"model": "m", "messages": [{"role": "assistant"} | turn]}), "demo").exact

    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    empty: list[dict[str, Any]] = [{"content": ""}, {"content": None}, {}]
    assert len({digest({"tool_calls": calls} | content) for content in empty}) == 1
    assert digest({"tool_calls": calls}) != digest({"tool_calls": calls, "content": "x"})
    # Without calls, templates may distinguish them.
    assert len({digest(content) for content in empty}) == 3


def test_whole_numbers_are_one_as_far_as_floats_are_exact() -> None:
    def exact(name: str, value: object) -> str:
        return cache_key(call({"model": "m", "prompt": "p", name: value}), "x").exact

    for one, other in ((0, 0.0), (1, 1.0), (0.0, -0.0), (2**53 - 1, float(2**53 - 1))):
        assert exact("temperature", one) == exact("temperature", other)
    for value in (2**53, 1):
        assert exact("seed", value) != exact("seed", True if value == 1 else float(value))


def test_what_an_earlier_version_stored_is_found_under_the_same_names() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "s", "cache_control": {}}]}
    body: Any = {"model": "m", "messages": [system, {"role": "user", "content": "why"}], "temperature": 1.0}
    request = api_request(
        body | {"seed": None, "user": "u"}, headers={"authorization": "x", "openai-beta": "b"}, query="a=1"
    )
    key = cache_key(request, "embedded")
    assert key.exact == "8f9dca3e878efa4117cecf0ba6bc3a4df49df87a794974e6064704b23b314f3c"
    assert key.semantic.namespace == "3f785e5a8ee18a88940629d08e1c7b2232f8cb3fac2f44005af90477139bdc2e"
    assert request.tenant == "eeb0fbfca1dc268a"


@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "read"}}]])
def test_listings_show_the_question_of_an_agent_without_its_reminders(tools: list[Any]) -> None:
    reminder = "<system-reminder>The date is Monday.</system-reminder>"
    parts = [{"type": "text", "text": text} for text in (reminder, "What is the word?")]
    semantic = cache_key(
        call({"model": "a", "tools": tools, "messages": [{"role": "user", "content": parts}]}), "x"
    ).semantic
    # A semantic lookup without tools compares the question with its reminders.
    compared = f"{reminder}What is the word?"
    assert semantic.prompt == ("What is the word?" if tools else compared)


def test_fields_that_a_rule_ignores_or_names() -> None:
    def exact(body: dict[str, Any], headers: dict[str, str] | None = None, **ruled: tuple[str, ...]) -> str:
        request = api_request({"model": "m", "prompt": "p"} | body, "completions", headers, tenant="t")
        control = (
            dataclasses.replace(request.control, rule=RuleSettings(name="r", **ruled)) if ruled else request.control
        )  # type: ignore[arg-type]
        return cache_key(dataclasses.replace(request, control=control), "x").exact

    ignored = ("trace", "metadata_.run", "metadata_.deep.x", "gone.y", "seed.z")
    plain = exact({"metadata_": {"deep": {}}, "seed": 1})
    assert exact({"metadata_": {"deep": {}}, "seed": 1}, ignore=ignored) == plain
    noisy = {"trace": 5, "metadata_": {"run": 1, "deep": {"x": 2}}, "seed": 1}
    assert exact(noisy, ignore=ignored) == plain != exact(noisy)
    noisy["metadata_"]["deep"]["y"] = 3  # type: ignore[index]
    assert exact(noisy, ignore=ignored) != plain
    assert noisy["trace"] == 5
    # A named field changes the key at any depth; an absent one does not.
    named = ("user.id", "user.gone", "metadata.x")
    keys = [exact({"user": {"id": id}}, key_fields=named) for id in (1, 2)]
    assert keys[0] != keys[1]
    assert exact({"user": 5}, key_fields=named) == exact({}) == exact({"user": {"id": None}}, key_fields=named)
    heads = [exact({}, {"x-team": team}, key_headers=("x-team", "x-none")) for team in "ab"]
    assert len({*heads, exact({})}) == 3
    # A header may be secret.
    request = api_request({"model": "m"}, headers={"x-team": "secret"})
    ruled = dataclasses.replace(request.control, rule=RuleSettings(name="r", key_headers=("x-team",)))
    assert "secret" not in str(cache_key(dataclasses.replace(request, control=ruled), "x"))
    assert exact({}, key_headers=("x-team",)) == exact({}, {"x-team": "a"})
