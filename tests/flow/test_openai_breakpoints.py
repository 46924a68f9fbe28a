"""Breakpoints of requests to OpenAI: where they stand, what they cost under the provider's rules, and equal prompts."""

from typing import Any, Literal

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.apis.request_directives import RequestDirectives
from kvproxy.flow.cache_keys import cache_key
from kvproxy.flow.prepare.breakpoints import with_breakpoints
from kvproxy.settings.rules import RuleSettings
from tests.clients.openai_api import billed_blocks
from tests.clients.prompt_cache import PromptCache, PromptUsage, rules_of

LONG = "word " * 2_000
MODEL = "gpt-5.6"
Api = Literal["chat", "responses"]


def request(body: dict[str, Any], api: Api = "chat", tenant: str = "public") -> ApiRequest:
    control = RequestDirectives(rule=RuleSettings(name="r", breakpoints="auto"))
    return ApiRequest(APIS[api], body, dumps(body), {}, tenant, "1", control=control)


def chat(*texts: str, model: str = MODEL, system: str = LONG, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    turns = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return {"model": model, "messages": [{"role": "system", "content": system}, *turns], **more}


def responses(*texts: str, developer: str = LONG) -> dict[str, Any]:
    roles = ("user", "assistant")
    items = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return {"model": MODEL, "instructions": "Be brief.", "input": [{"role": "developer", "content": developer}, *items]}


def marked(body: Any) -> list[int]:
    turns = body.get("messages") or body["input"]
    return [place for place, turn in enumerate(turns) if "prompt_cache_breakpoint" in str(turn)]


def bill(cache: PromptCache, sent: ApiRequest) -> PromptUsage:
    body: Any = sent.body
    implicit = (body.get("prompt_cache_options") or {}).get("mode") != "explicit"
    scope = str(body.get("prompt_cache_key"))
    return cache.use(rules_of(MODEL), list(billed_blocks(body)), scope, implicit=implicit)


@pytest.mark.parametrize(("api", "bodies"), [("chat", chat), ("responses", responses)])
def test_another_conversation_reads_the_instructions(api: Api, bodies: Any) -> None:
    unmarked, cache = PromptCache(), PromptCache()
    for question in ("one", "two"):
        plain = request(bodies(question), api)
        before = bill(unmarked, plain)
        after = bill(cache, with_breakpoints(plain))
    assert before.read == 0
    assert after.read > 2_000
    assert after.total - after.read < 100


def test_a_mark_makes_a_block_of_the_instructions_only() -> None:
    plain = request(chat("one", "answer", "two"))
    changed = with_breakpoints(plain)
    assert marked(changed.body) == [0]
    assert changed.body["messages"][1:] == plain.body["messages"][1:]  # type: ignore[index]
    assert "breakpoints:1 system" in changed.control.tags
    assert cache_key(changed, "b") == cache_key(plain, "b")


@pytest.mark.parametrize("model", ["gpt-5.5", "gpt-4o", "gpt-4.1-mini", "o3", "m", "llama-3.3-70b", "gemini-2.5-pro"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_models_that_refuse_breakpoints_get_none(model: str, api: Api) -> None:
    plain = request({**(chat if api == "chat" else responses)("one"), "model": model}, api)
    assert with_breakpoints(plain) is plain


@pytest.mark.parametrize("model", ["gpt-5.6-sol", "openai/gpt-5.6", "gpt-6-astra-2026-08-01", "openai.gpt-5.6-luna"])
def test_gateways_and_later_models_get_breakpoints(model: str) -> None:
    assert marked(with_breakpoints(request(chat("one", model=model))).body) == [0]


def test_short_instructions_are_not_marked() -> None:
    assert marked(with_breakpoints(request(chat("one", system="short"))).body) == []


def test_the_key_belongs_to_the_tenant_and_the_client_may_choose_it() -> None:
    keys = {
        tenant: with_breakpoints(request(chat("one"), tenant=tenant)).body["prompt_cache_key"] for tenant in ("a", "b")
    }
    assert keys["a"] != keys["b"]
    assert with_breakpoints(request(chat("two"), tenant="a")).body["prompt_cache_key"] == keys["a"]
    assert with_breakpoints(request(chat("one", prompt_cache_key="own"))).body["prompt_cache_key"] == "own"


@pytest.mark.parametrize(("api", "bodies"), [("chat", chat), ("responses", responses)])
def test_a_request_that_nobody_continues_reads_the_conversation_and_writes_nothing(api: Api, bodies: Any) -> None:
    cache = PromptCache()
    first = bill(cache, with_breakpoints(request(bodies("one " * 2_000), api)))
    summary = request(bodies("one " * 2_000, "answer", "Summarise."), api)
    after = bill(cache, with_breakpoints(summary, is_continued=False))
    assert after.read == first.total
    assert sum(after.written.values()) == 0
    assert after.uncached > 0


def test_a_title_is_not_written() -> None:
    title = with_breakpoints(request(chat("name this " * 2_000, system="short")), is_continued=False)
    usage = bill(PromptCache(), title)
    assert (usage.read, sum(usage.written.values())) == (0, 0)


def test_marks_of_the_client_and_other_parts_stay() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    body = chat("one")
    body["messages"][0]["content"] = [{"type": "text", "text": LONG, **mark}]
    body["messages"][1]["content"] = [image]
    changed = with_breakpoints(request(body))
    assert changed.body["messages"] == body["messages"]
