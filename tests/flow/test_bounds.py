"""The state that a path of requests keeps of clients and upstreams is filled to its bound. `docs/limits.md` lists the bounds."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.backends.protocol import RelayedResponse
from kvproxy.exchange import Exchange, ResponseFacts
from kvproxy.flow import compare_responses, tenants
from kvproxy.flow.compare_responses import Comparison, ComparisonQueue, ResponseComparer
from kvproxy.flow.conversation_digests import with_conversation
from kvproxy.flow.prepare import continuations, diagnoses, history_repair, keep_warm
from kvproxy.flow.prepare.continuations import Continuations
from kvproxy.flow.prepare.diagnoses import PreviousResponses
from kvproxy.flow.prepare.history_repair import HistoryRepair
from kvproxy.flow.prepare.keep_warm import KeepWarm
from kvproxy.flow.tenants import Tenants
from kvproxy.providers import cache_policy
from kvproxy.providers.cache_policy import PauseTimes
from kvproxy.providers.cache_rules import rule_of_marks
from kvproxy.settings import load_settings
from kvproxy.settings.access import AccessSettings
from kvproxy.upstreams import refused_cache_fields
from kvproxy.upstreams.refused_cache_fields import RefusedCacheFields
from tests.requests import api_request, chat

RULE = {"name": "warm", "path": "/v1/messages", "breakpoints": "5m", "keep_warm_tokens": 10**9}


def test_cookies_that_upstreams_set_are_remembered_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "_MAX_REMEMBERED", 50)
    found = Tenants(AccessSettings())
    for number in range(200):
        found.record_cookies("public", [("set-cookie", f"lb={number}")])
    assert len(found._set_cookies._digests) == 50
    assert found.tenant_of({"cookie": "lb=199"}, None) == "public" != found.tenant_of({"cookie": "lb=0"}, None)


class Warmed:
    """A `KeepWarm` without requests of its own; `finish` ends a request of a session."""

    def __init__(self) -> None:
        settings = load_settings(rules=(RULE,))
        (self._rule,) = settings.rules
        self.now = 1_000_000.0
        self.keep_warm = KeepWarm(Mock(clock=lambda: self.now), {}, None)

    async def finish(
        self, text: str, model: str = "m", cached: int = 100, until: str = "5m", size: int = 0, **fields: Any
    ) -> None:
        mark = {"type": "ephemeral", "ttl": until}
        block = {"type": "text", "text": text + "x" * size, "cache_control": mark}
        body: Any = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
        body |= fields
        request = api_request(body, "messages")
        request = replace(request, control=replace(request.control, rule=self._rule))
        request, _ = await self.keep_warm.on_request(request)
        exchange = Exchange("messages", text, "public", self.now, request=request, status=200)
        exchange.facts = ResponseFacts(prefix=PrefixReuse(100, cached))
        self.keep_warm.on_finish(exchange)


async def test_sessions_are_kept_warm_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_warm, "_MAX_SESSIONS", 10)
    warm = Warmed()
    for number in range(30):
        await warm.finish(f"session {number}")
    assert len(warm.keep_warm._sessions) == 10
    assert len([task for task in asyncio.all_tasks() if "_keep_prefix" in repr(task) and not task.cancelling()]) == 10
    monkeypatch.setattr(keep_warm, "_MAX_BYTES", 50_000)
    for number in range(30):
        await warm.finish(f"large session {number}", size=10_000)
    assert 2 <= len(warm.keep_warm._sessions) <= 5
    assert warm.keep_warm._bytes == sum(len(each.request.raw) for each in warm.keep_warm._sessions.values()) <= 50_000
    await warm.keep_warm.close()


async def test_models_whose_prefixes_are_written_again_are_remembered_to_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keep_warm, "MAX_FIXED_MODELS", 5)
    warm = Warmed()
    for number in range(12):
        # Another lifetime of the breakpoint, and nothing of the prefix was cached.
        await warm.finish(f"{number}", f"model {number}")
        await warm.finish(f"{number}", f"model {number}", cached=0, until="1h")
    assert 0 < len(warm.keep_warm._fixed_models) <= 5
    await warm.keep_warm.close()


async def test_a_changed_tool_explains_why_a_prefix_was_written_again() -> None:
    warm = Warmed()
    tools = [{"name": name, "input_schema": {}} for name in ("read", "write")]
    await warm.finish("0", tools=tools[:1], system="Be brief.")
    await warm.finish("0", cached=0, until="1h", tools=tools, system="Be brief.")
    assert warm.keep_warm._fixed_models == set()
    marked = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    await warm.finish("0", cached=0, tools=tools, system=marked)
    assert warm.keep_warm._fixed_models == {"m"}
    await warm.keep_warm.close()


def test_pauses_of_tenants_are_counted_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_policy, "MAX_DISTRIBUTIONS", 50)
    pauses = PauseTimes()
    for number in range(1_000):
        pauses.add(10.0, f"tenant {number}", number % 24)
    assert len(pauses._counts) == 50
    assert sum(pauses._counts[()]) == 1_000
    assert ("tenant 999",) in pauses._counts


def test_original_answers_are_kept_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    history = HistoryRepair(100_000)
    for number in range(1_000):
        answer: Any = {"choices": [{"message": {"role": "assistant", "content": f"{number}"}}]}
        history.remember(api_request(chat(number)), answer)
        # The order of tools is kept by the same bound, and needs no response.
        history.repair(api_request(chat("tools", tools=[{"name": f"{number}"}, {"name": "b"}])))
    assert 100 < len(history._originals) < 100_000 / history_repair._OVERHEAD
    assert 90_000 < history._bytes <= 100_000
    assert history._bytes == sum(len(data) + history_repair._OVERHEAD for data in history._originals.values())


def test_waiting_comparisons_are_kept_to_the_bound() -> None:
    queue = ComparisonQueue(compare_responses._MAX_QUEUED)
    dropped = [queue.put(Comparison(Mock(), Mock(), Mock(chosen=None, observation=None))) for _ in range(500)]
    assert len(queue) == compare_responses._MAX_QUEUED == 500 - sum(each is not None for each in dropped)


def test_namespaces_with_a_warning_are_remembered_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_responses, "MAX_WARNED", 10)
    comparer = ResponseComparer(Mock(), Mock(), load_settings().cache)
    for number in range(35):
        comparer._warn(f"namespace {number}", f"{number} is odd")
    assert len(comparer._warned) == 5


def test_the_queue_of_comparisons_has_its_bound_in_a_proxy(tmp_path: Path) -> None:
    comparer = ResponseComparer(Mock(), Mock(), load_settings(data=tmp_path).cache)
    assert comparer._queue._limit == compare_responses._MAX_QUEUED


def _asked(number: int, model: str = "claude-sonnet-5") -> ApiRequest:
    question = {"role": "user", "content": f"question {number}"}
    body: Any = {"model": model, "max_tokens": 9, "system": f"You are agent {number}.", "messages": [question]}
    return asyncio.run(with_conversation(api_request(body, "messages")))


def test_requests_that_may_continue_are_kept_to_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuations, "_MAX_WAITING", 50)
    monkeypatch.setattr(continuations, "_MAX_KINDS", 20)
    now = 1_000.0
    found = Continuations(lambda: now)
    for number in range(100):
        asked = _asked(number)
        found.expects_another(asked, asked.conversation, rule_of_marks("claude-sonnet-5"))
    assert len(found._waiting) == 50
    now += 100_000
    found.expects_another(asked, asked.conversation, rule_of_marks("claude-sonnet-5"))
    assert (len(found._waiting), len(found._kinds)) == (1, 20)


def test_models_whose_upstream_refuses_breakpoints_are_kept_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_cache_fields, "_MAX_MODELS", 20)
    found = RefusedCacheFields("https://api.example.com")

    async def send(request: ApiRequest) -> RelayedResponse:
        reply = Mock(spec=RelayedResponse, status=200 if request.unmarked_body is None else 400, close=AsyncMock())
        return cast("RelayedResponse", reply)

    for number in range(60):
        request = _asked(number, f"model {number}")
        marked = request.with_cache_fields({**request.body, "prompt_cache_key": "x"})
        asyncio.run(found.send(marked, send))
    assert len(found._models) == 20


def test_responses_to_compare_are_kept_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnoses, "_MAX_RESPONSES", 50)
    found = PreviousResponses()
    for number in range(200):
        request = found.ask(_asked(number))
        exchange = Exchange("messages", f"{number}", "public", request=request)
        exchange.facts.response_id = f"msg_{number}"
        found.finished(exchange)
    assert len(found._ids) == 50
