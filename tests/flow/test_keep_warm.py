"""Paused sessions in front of a provider with short lifetimes: keep-warm requests, their budget, and one-hour breakpoints."""

import asyncio
import contextlib
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.flow.conversation_digests import conversation_digests
from kvproxy.http.serve import make_server
from kvproxy.http.services import Services, build_services
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.savings import savings
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.operations.record_query import RecordQuery
from kvproxy.providers.cache_policy import HOUR, KEEP_WARM_MARGIN, KEEP_WARM_SECONDS, PauseTimes
from kvproxy.settings import load_settings
from kvproxy.settings.journal import PriceSettings
from kvproxy.settings.rules import RuleSettings
from tests.anthropic_upstream import AnthropicUpstream
from tests.clients.anthropic_api import THREADS_BETA
from tests.polling import until, until_async
from tests.requests import api_request
from tests.servers import run_proxy, run_server, run_upstream

LONG = "word " * 2_000


class Clock:
    """Seconds that pass by command."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    async def sleep_until(self, time: float) -> None:
        await until_async(lambda: self.now >= time, math.inf, 0.002)


@contextlib.contextmanager
def proxied(
    data: Path,
    upstream: AnthropicUpstream,
    *pauses: float,
    clock: Clock | None = None,
    journal: Any = None,
    **rule: Any,
) -> Iterator[tuple[httpx.Client, Services]]:
    rules = ({"name": "claude", "path": "/v1/messages"} | rule,)
    edits = ({"name": "date", "action": "move", "pattern": r"(It is \d\d:\d\d)"},)
    with run_upstream(upstream.answer) as url:
        options = {"cache": {"semantic": False}, "journal": journal or {}, "limits": {"drain_seconds": 0}}
        services = build_services(load_settings(data=data, upstream=url, rules=rules, edits=edits, **options))
        keep_warm = services.path.keep_warm
        keep_warm.pauses = PauseTimes(())
        for seconds in pauses:
            keep_warm.pauses.add(seconds)
        if clock is not None:
            services.clock = keep_warm._clock = clock
            keep_warm._sleep_until = clock.sleep_until  # type: ignore[method-assign]
        with run_server(make_server(services)) as proxy, httpx.Client(base_url=proxy, timeout=300) as client:
            yield client, services


def ask(client: httpx.Client, *texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    body = {"model": "claude-test", "max_tokens": 9, "system": LONG, "messages": messages} | more
    reply = client.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    usage: dict[str, Any] = reply.json()["usage"]
    return usage


def sessions(services: Services) -> list[Any]:
    return list(services.path.keep_warm._sessions.values())


def pings(upstream: AnthropicUpstream) -> list[dict[str, Any]]:
    return [body for body in upstream.bodies if body["max_tokens"] == 0]


def test_a_paused_session_is_kept_warm_until_it_continues(tmp_path: Path) -> None:
    clock = Clock()
    upstream = AnthropicUpstream(clock=clock)
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    with proxied(tmp_path, upstream, 10, 900, clock=clock, **rule) as (client, services):

        def pause(intervals: int) -> None:
            until(lambda: sessions(services) and sessions(services)[0].ended == clock.now)
            for _ in range(intervals):
                sent = len(pings(upstream))
                clock.now += KEEP_WARM_SECONDS
                until(lambda sent=sent: len(pings(upstream)) == sent + 1)
                # The next pause of this session begins with the request.
                until(lambda: sessions(services)[0].used == clock.now)

        client.headers["x-kvproxy-tags"] = "project:web"
        first = ask(client, "one")
        pause(2)
        second = ask(client, "one", "Yes.", "two")
        assert len(pings(upstream)) == 2
        assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"]
        # The session does not continue, and the limit is three requests.
        pause(3)
        clock.now += KEEP_WARM_SECONDS
        time.sleep(0.3)
        assert len(pings(upstream)) == 5
    assert all(usage["cache_creation_input_tokens"] == 0 for usage in upstream.usages[1:3])
    with closing(sqlite3.connect(tmp_path / "journal.db")) as journal, journal:
        rows = journal.execute(
            "select reused_tokens, prompt_tokens from requests where tags = 'project:web,keep-warm'"
        ).fetchall()
    assert len(rows) == 5
    assert all(reused and reused <= prompt for reused, prompt in rows)
    with contextlib.closing(JournalReader(tmp_path / "journal.db")) as reader:
        assert [row.requests for row in savings(reader, "tenant", {})] == [2]
        # The project pays for its keep-warm requests.
        prices = {"claude-test": PriceSettings(input=1.0, cached=0.1)}
        (project,), (every,) = (savings(reader, by, prices) for by in ("project", "tenant"))
        assert (project.name, project.requests, project.spent) == ("web", 2, pytest.approx(every.spent))
        repeated = reader.records(RecordQuery(layer="warming"))
        assert [record.reason for record in repeated] == ["keep-warm"] * 5


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        ({"breakpoints": "5m"}, {}),
        ({"breakpoints": "5m", "keep_warm_tokens": 0}, {}),
        ({"keep_warm_tokens": 10**9}, {}),
        ({"breakpoints": "5m", "keep_warm_tokens": 10**9}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ],
)
def test_without_a_budget_or_breakpoints_no_request_is_sent(tmp_path: Path, rule: Any, more: Any) -> None:
    upstream = AnthropicUpstream()
    with proxied(tmp_path, upstream, 900, **rule) as (client, services):
        services.path.keep_warm.interval = 0.05
        ask(client, "one", **more)
        time.sleep(0.4)
    assert pings(upstream) == []


PRICES = {"prices": {"claude*": {"input": 3, "cached": 0.3}}}


@pytest.mark.parametrize(
    ("budget", "journal", "sent"),
    [
        ({"keep_warm_tokens": 600}, {}, 1),
        ({"keep_warm_money": 0.0005}, PRICES, 1),
        ({"keep_warm_money": 100}, PRICES, 4),
        ({"keep_warm_money": 100}, {}, 0),
        ({"keep_warm_money": 0}, PRICES, 0),
    ],
)
def test_the_budget_limits_the_requests_of_all_sessions(tmp_path: Path, budget: Any, journal: Any, sent: int) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    rule = {"breakpoints": "5m", **budget}
    with proxied(tmp_path, upstream, 400, clock=clock, journal=journal, **rule) as (client, services):
        for number in range(4):
            ask(client, f"{number}")
        until(lambda: len(sessions(services)) == 4)
        clock.now += KEEP_WARM_SECONDS
        until(lambda: len(pings(upstream)) >= sent)
        time.sleep(0.2)
    assert len({body["messages"][0]["content"][0]["text"] for body in pings(upstream)}) == sent


@pytest.mark.parametrize(
    ("prices", "sent"),
    [
        ({"input": 3, "cached": 0.3, "write_5m": 3.75, "write_1h": 6}, 1),
        ({"input": 3, "cached": 2.7, "write_5m": 3, "write_1h": 3}, 0),
        # Anthropic's ratios, because no write has a price.
        ({"input": 3, "cached": 2.7}, 1),
    ],
)
def test_the_prices_of_the_model_decide_whether_a_session_is_kept_warm(
    tmp_path: Path, prices: dict[str, float], sent: int
) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    journal = {"prices": {"claude*": prices}}
    with proxied(tmp_path, upstream, 400, clock=clock, journal=journal, **rule) as (client, services):
        ask(client, "one")
        until(lambda: len(sessions(services)) == 1)
        clock.now += KEEP_WARM_SECONDS
        until(lambda: len(pings(upstream)) >= sent)
        time.sleep(0.2)
    assert len(pings(upstream)) == sent


def test_a_prefix_that_the_provider_lost_is_not_kept_warm(tmp_path: Path) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    with proxied(tmp_path, upstream, 900, clock=clock, **rule) as (client, services):
        ask(client, "one")
        until(lambda: len(sessions(services)) == 1)
        upstream.evict()
        clock.now += KEEP_WARM_SECONDS
        until(lambda: len(pings(upstream)) == 1)
        clock.now += KEEP_WARM_SECONDS
        time.sleep(0.2)
        until(lambda: "1 sent: the provider had dropped the prefix" in outcomes(tmp_path))
    assert len(pings(upstream)) == 1


def test_a_request_is_not_repeated_to_keep_a_small_part_of_it(tmp_path: Path) -> None:
    """Each keep-warm request would cost more than it saves: it pays in full for the rest of the prompt."""
    upstream, clock = AnthropicUpstream(), Clock()
    tools = [{"name": "read", "description": LONG, "input_schema": {}, "cache_control": {"type": "ephemeral"}}]
    with proxied(tmp_path, upstream, 900, clock=clock, keep_warm_tokens=10**9) as (client, services):
        ask(client, "one", system=LONG * 3, tools=tools)
        until(lambda: sessions(services))
        clock.now += KEEP_WARM_SECONDS
        until(lambda: outcomes(tmp_path) not in ([], [None]))
    (usage,) = upstream.usages
    written, total = usage["cache_creation_input_tokens"], usage["cache_creation_input_tokens"] + usage["input_tokens"]
    assert outcomes(tmp_path) == [f"none sent: the provider cached only {written:,} of {total:,} prompt tokens"]


def test_a_request_that_warms_the_cache_begins_no_session(tmp_path: Path) -> None:
    with proxied(tmp_path, AnthropicUpstream(), 900, breakpoints="5m", keep_warm_tokens=10**9) as (client, services):
        client.headers["cache-control"] = "no-cache, no-store, warming"
        ask(client, "one")
        until(lambda: len(services.journal.latest(1)) == 1)
        assert sessions(services) == []


def outcomes(data: Path) -> list[str | None]:
    with contextlib.closing(JournalReader(data / "journal.db")) as reader:
        return [turn.keep_warm for turn in SessionReader(reader, {}).all_turns()]


@pytest.mark.parametrize(
    ("pause", "more", "rule", "expected"),
    [
        (10, {}, {}, "none sent: the session was too unlikely to continue"),
        (900, {}, {"keep_warm_tokens": 0}, "none sent: the rule's budget was used up"),
        (900, {}, {"breakpoints": "1h"}, "none sent: the provider keeps the prefix for an hour"),
        (900, {}, {"breakpoints": None}, "none sent: the request had no breakpoint"),
        (
            900,
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {},
            "none sent: a request with thinking.type = enabled requires output",
        ),
    ],
)
def test_sessions_show_why_no_keep_warm_request_was_sent(
    tmp_path: Path, pause: float, more: Any, rule: Any, expected: str
) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9} | rule
    rule = {name: value for name, value in rule.items() if value is not None}
    with proxied(tmp_path, upstream, pause, clock=clock, **rule) as (client, services):
        ask(client, "one", **more)
        until(lambda: sessions(services))
        clock.now += KEEP_WARM_SECONDS
        until(lambda: outcomes(tmp_path) == [expected])
    assert pings(upstream) == []


def test_a_part_that_the_provider_keeps_for_an_hour_is_not_called_the_prefix(tmp_path: Path) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    first, second = (
        {"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral", **ttl}}]}
        for text, ttl in ((LONG * 9, {"ttl": "1h"}), (LONG, {}))
    )
    messages = [first, {"role": "assistant", "content": "two"}, second]
    with proxied(tmp_path, upstream, 900, clock=clock, keep_warm_tokens=10**9) as (client, services):
        ask(client, messages=messages[:1])
        until(lambda: sessions(services))
        ask(client, messages=messages)
        until(lambda: [0 < kept.one_hour_tokens < kept.tokens for kept in sessions(services)] == [True])
        clock.now += KEEP_WARM_SECONDS
        end = "none sent: the provider keeps a part of the prefix for an hour, and the rest costs less than these requests"
        until(lambda: outcomes(tmp_path)[-1:] == [end])
    assert pings(upstream) == []


def test_a_session_shows_that_the_proxy_stopped_before_its_keep_warm_requests(tmp_path: Path) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    with proxied(tmp_path, upstream, 900, clock=clock, **rule) as (client, services):
        ask(client, "one")
        until(lambda: sessions(services))
    assert outcomes(tmp_path) == ["none sent: the proxy stopped"]


def test_a_session_that_continues_late_keeps_the_reason_of_its_lost_prefix(tmp_path: Path) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    unlikely = "1 sent: the session was too unlikely to continue"
    with proxied(tmp_path, upstream, 300, clock=clock, **rule) as (client, services):
        ask(client, "one")
        until(lambda: sessions(services))
        clock.now += KEEP_WARM_SECONDS
        until(lambda: outcomes(tmp_path)[:1] == [unlikely])
        ask(client, "one", "Yes.", "two")
        until(lambda: len(outcomes(tmp_path)) == 3)
        assert outcomes(tmp_path)[0] == unlikely


class _ChatUpstream(AnthropicUpstream):
    async def answer(self, request: Request) -> Response:
        await request.body()
        choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 2_000, "completion_tokens": 2, "total_tokens": 2_002}
        return JSONResponse({"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage})


def test_sessions_show_that_another_api_has_no_keep_warm_requests(tmp_path: Path) -> None:
    chat = "/v1/chat/completions"
    with proxied(tmp_path, _ChatUpstream(), 900, path=chat, keep_warm_tokens=10**9) as (client, _):
        body = {"model": "gpt-5.6", "messages": [{"role": "user", "content": LONG}]}
        assert client.post(chat, json=body).status_code == 200
        until(lambda: outcomes(tmp_path) == ["none sent: only requests to /v1/messages have keep-warm requests"])


class _RequiresOutput(AnthropicUpstream):
    """A gateway that refuses requests for no output."""

    async def answer(self, request: Request) -> Response:
        if b'"max_tokens":0' in await request.body():
            self.empty += 1
            return JSONResponse({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, 400)
        return await super().answer(request)

    empty = 0


def test_one_token_is_requested_where_the_upstream_requires_output(tmp_path: Path) -> None:
    upstream, clock = _RequiresOutput(), Clock()
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    with proxied(tmp_path, upstream, 900, clock=clock, **rule) as (client, services):
        ask(client, "one")
        until(lambda: sessions(services))
        for sent in (1, 2):
            clock.now += KEEP_WARM_SECONDS
            until(lambda sent=sent: len(upstream.bodies) == 1 + sent and sessions(services)[0].sent == sent)
    assert [body["max_tokens"] for body in upstream.bodies] == [9, 1, 1]
    assert upstream.empty == 1


def test_structured_output_is_kept_warm_with_one_token(tmp_path: Path) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    with proxied(tmp_path, upstream, 900, clock=clock, **rule) as (client, services):
        ask(client, "one", output_config={"format": {"type": "json_schema", "schema": {}}})
        until(lambda: sessions(services))
        clock.now += KEEP_WARM_SECONDS
        until(lambda: len(upstream.bodies) == 2)
    assert [body["max_tokens"] for body in upstream.bodies] == [9, 1]


def test_runs_without_a_person_are_not_kept_warm_and_have_their_own_pauses(tmp_path: Path) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    with proxied(tmp_path, upstream, 900, clock=clock, **rule) as (client, services):
        client.headers["user-agent"] = "claude-cli/2.1.197 (external, sdk-cli)"
        ask(client, "one")
        until(lambda: outcomes(tmp_path) == ["none sent: the session was too unlikely to continue"])
        until(lambda: sessions(services))
        clock.now += HOUR
        keep_warm = services.path.keep_warm
        until(lambda: not sessions(services))
        assert sum(keep_warm.headless_pauses._counts[()]) == 1
        assert sum(keep_warm.pauses._counts[()]) == 1
    with contextlib.closing(JournalReader(tmp_path / "journal.db")) as reader:
        assert [pause[3] for pause in SessionReader(reader, {}).pauses(clock.now + HOUR)] == [True]


def _lifetimes(body: dict[str, Any]) -> list[str]:
    blocks = [*body["system"], *(block for message in body["messages"] for block in message["content"])]
    return [
        block["cache_control"].get("ttl", "5m")
        for block in blocks
        if isinstance(block, dict) and "cache_control" in block
    ]


def test_small_additions_to_a_long_prefix_keep_it_for_an_hour(tmp_path: Path) -> None:
    clock = Clock()
    upstream = AnthropicUpstream(clock=clock)
    with proxied(tmp_path, upstream, *[10] * 9, 900, clock=clock, breakpoints="auto") as (client, services):
        for seconds, texts in ((60, []), (60, ["Yes.", "two"]), (2_000, ["Yes.", "two", "Yes.", "long " * 1_500])):
            ask(client, "one", *texts)
            until(lambda: [each.ended for each in sessions(services)] == [clock.now])
            clock.now += seconds
        usage = ask(client, "one", "Yes.", "two", "Yes.", "long " * 1_500, "Yes.", "three")
    assert not upstream.refused
    assert [_lifetimes(body)[-1] for body in upstream.bodies[:3]] == ["5m", "1h", "5m"]
    assert "1h" in _lifetimes(upstream.bodies[2])
    # Without the long addition, the prefix is still there after half an hour.
    before = upstream.usages[1]
    assert usage["cache_read_input_tokens"] == before["cache_read_input_tokens"] + before["cache_creation_input_tokens"]


def test_a_provider_that_rewrites_prefixes_of_another_lifetime_keeps_five_minutes(tmp_path: Path) -> None:
    clock = Clock()
    upstream = AnthropicUpstream(clock=clock, separate_lifetimes=True)
    with proxied(tmp_path, upstream, *[10] * 9, 900, clock=clock, breakpoints="auto") as (client, services):
        texts = ["one"]
        for number in range(4):
            ask(client, *texts)
            until(lambda: [each.ended for each in sessions(services)] == [clock.now])
            clock.now += 60
            texts += ["Yes.", f"{number}"]
        ask(client, "other")
        until(lambda: len(sessions(services)) == 2)
        ask(client, "other", "Yes.", "two")
    assert [_lifetimes(body)[-1] for body in upstream.bodies] == ["5m", "1h", "5m", "5m", "5m", "5m"]


def test_pauses_in_the_journal_are_learned_at_the_start(tmp_path: Path) -> None:
    upstream = AnthropicUpstream()
    with proxied(tmp_path, upstream, breakpoints="auto") as (client, _):
        for texts in (["one"], ["one", "Yes.", "two"], ["other"]):
            ask(client, *texts)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as journal, journal:
        # All of it happened two hours ago, with a long pause.
        journal.execute("update records set time = time - 7200")
        journal.execute("update turns set pause = 900 where pause is not null")
    with run_upstream(upstream.answer) as url:
        rules = ({"name": "claude", "breakpoints": "auto"},)
        settings = load_settings(data=tmp_path, upstream=url, rules=rules, cache={"semantic": False})
        with run_proxy(settings) as (_, services):
            counts = services.path.keep_warm.pauses._counts
            until(lambda: sum(counts.get((), [])) == 3)
            assert counts[()][3] == 1
            assert counts[()][-1] == 2


@pytest.mark.parametrize("field", [{"thread": {"type": "create"}}, {"container": "c"}])
def test_requests_that_a_provider_accepts_once_are_not_repeated(tmp_path: Path, field: dict[str, Any]) -> None:
    clock = Clock()
    upstream = AnthropicUpstream(clock=clock)
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    with proxied(tmp_path, upstream, 10, 900, clock=clock, **rule) as (client, services):
        client.headers["anthropic-beta"] = THREADS_BETA
        ask(client, "one", **field)
        ask(client, "two")
        until(lambda: sessions(services))
        assert len(sessions(services)) == 1


async def test_concurrent_requests_with_one_id_keep_their_own_conversations(tmp_path: Path) -> None:
    """A client may send any `X-Request-Id`, also twice."""
    rule = RuleSettings(name="claude", keep_warm_tokens=10**9)
    bodies: list[Any] = [
        {"model": "claude-test", "messages": [{"role": "user", "content": text}]} for text in ("one", "two")
    ]
    requests = [api_request(body, "messages") for body in bodies]
    requests = [replace(each, control=replace(each.control, rule=rule)) for each in requests]
    services = build_services(load_settings(data=tmp_path, upstream="http://127.0.0.1:9", cache={"semantic": False}))
    keep_warm = services.path.keep_warm
    tracked = [(await keep_warm.on_request(each))[0] for each in requests]
    assert [each.request_id for each in tracked] == ["id", "id"]
    assert [list(each.conversation) for each in tracked] == [list(conversation_digests(each)) for each in requests]
    assert tracked[0].conversation != tracked[1].conversation
    await services.close()


class _OverloadedUpstream(AnthropicUpstream):
    """Refuses conversations that end with `refused`."""

    async def answer(self, request: Request) -> Response:
        if b'"refused"' in await request.body():
            return JSONResponse({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, 529)
        return await AnthropicUpstream.answer(self, request)


def test_keep_warm_requests_continue_after_a_failed_request(tmp_path: Path) -> None:
    clock = Clock()
    upstream = _OverloadedUpstream(clock=clock)
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    with proxied(tmp_path, upstream, 10, 900, clock=clock, **rule) as (client, services):
        ask(client, "one")
        until(lambda: len(sessions(services)) == 1)
        body = {"model": "claude-test", "max_tokens": 9, "system": LONG}
        texts = (("user", "one"), ("assistant", "Yes."), ("user", "refused"))
        messages = [{"role": role, "content": text} for role, text in texts]
        assert client.post("/v1/messages", json=body | {"messages": messages}).status_code == 529
        until(lambda: sessions(services)[0].task is not None)
        clock.now += KEEP_WARM_SECONDS
        until(lambda: len(pings(upstream)) == 1)


def test_no_keep_warm_request_is_sent_after_the_prefix_expired(tmp_path: Path) -> None:
    clock = Clock()
    upstream = AnthropicUpstream(clock=clock)
    rule = {"breakpoints": "5m", "keep_warm_tokens": 10**9}
    with proxied(tmp_path, upstream, 10, 900, clock=clock, **rule) as (client, services):
        ask(client, "one")
        until(lambda: len(sessions(services)) == 1)
        clock.now += KEEP_WARM_SECONDS + KEEP_WARM_MARGIN
        # The task waits for the next state: the end of the session.
        time.sleep(0.2)
        assert pings(upstream) == []
        clock.now += HOUR
        until(lambda: not sessions(services))
    assert pings(upstream) == []


def test_a_request_that_ends_after_the_shutdown_begins_no_keep_warm_requests(tmp_path: Path) -> None:
    upstream = AnthropicUpstream()
    with proxied(tmp_path, upstream, 10, 900, breakpoints="5m", keep_warm_tokens=10**9) as (client, services):
        ask(client, "one")
        until(lambda: sessions(services))
        loop = sessions(services)[0].task.get_loop()
        asyncio.run_coroutine_threadsafe(services.path.keep_warm.close(), loop).result(300)
        ask(client, "another conversation")
        until(lambda: len(sessions(services)) == 2)
        assert sessions(services)[1].task is None


@pytest.mark.parametrize(
    ("last", "more"),
    [
        (("one", "Yes.", "two"), {"model": "claude-other"}),
        (("one", "Yes.", "two, corrected"), {}),
    ],
)
def test_only_the_last_request_of_a_session_is_kept_warm(tmp_path: Path, last: tuple[str, ...], more: Any) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    with proxied(tmp_path, upstream, 400, clock=clock, breakpoints="5m", keep_warm_tokens=10**9) as (client, services):
        for texts, fields in ((("one",), {}), (("one", "Yes.", "two"), {}), (last, more), (("another",), {})):
            ask(client, *texts, **fields)
            # The next request arrives after the end of this one.
            until(lambda: any(session.ended == clock.now for session in sessions(services)))
            clock.now += 1
        assert len(sessions(services)) == 2
        clock.now += KEEP_WARM_SECONDS
        until(lambda: len(pings(upstream)) == 2)
    assert sorted(body["messages"][-1]["content"][0]["text"] for body in pings(upstream)) == ["another", last[-1]]


TASK = "Read all files and report which of them are tests."


def tool_use(id: str, **arguments: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "agent", "input": arguments}


def tool_result(id: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "three"}]}


@pytest.mark.parametrize(
    ("answer", "names", "is_ended"),
    [
        ([{"type": "text", "text": "three"}], ("a", "a"), True),
        ([{"type": "text", "text": "three"}], (None, "a"), True),
        ([{"type": "text", "text": "three"}], ("b", "a"), False),
        # In the background, the sub-agent still reads files.
        ([tool_use("2", path="tests")], ("a", "a"), False),
    ],
)
def test_a_finished_sub_agent_is_kept_warm_until_its_parent_has_the_result(
    tmp_path: Path, answer: list[dict[str, Any]], names: tuple[str | None, str], is_ended: bool
) -> None:
    clock, call = Clock(), [tool_use("1", prompt=TASK)]
    upstream = AnthropicUpstream([call, answer], clock=clock)
    sub_agent, parent = ({} if name is None else {"x-session-id": name} for name in names)
    with proxied(tmp_path, upstream, 400, clock=clock, breakpoints="5m", keep_warm_tokens=10**9) as (client, services):
        reminder = [{"type": "text", "text": "<system-reminder>The project is in Python.</system-reminder>"}]
        content = [*reminder, {"type": "text", "text": "Count the tests."}]
        messages: list[Any] = [{"role": "user", "content": content}]
        client.headers.update(parent)
        ask(client, messages=messages)
        until(lambda: len(sessions(services)) == 1)
        client.headers.pop("x-session-id", None)
        client.headers.update(sub_agent)
        ask(client, messages=[{"role": "user", "content": [*reminder, {"type": "text", "text": TASK}]}])
        until(lambda: len(sessions(services)) == 2)
        client.headers.update(parent)
        ask(client, messages=[*messages, {"role": "assistant", "content": call}, tool_result("1")])
        until(lambda: len(sessions(services)) == (1 if is_ended else 2))
        until(lambda: len(upstream.bodies) == 3 and all(session.task for session in sessions(services)))
        if is_ended:
            until(lambda: "none sent: the sub-agent's parent continued with its result" in outcomes(tmp_path))
        clock.now += KEEP_WARM_SECONDS
        until(lambda: len(pings(upstream)) == (1 if is_ended else 2))
        prefixes = {body["messages"][0]["content"][1]["text"] for body in pings(upstream)}
        assert prefixes == ({"Count the tests."} if is_ended else {"Count the tests.", TASK})


def test_a_session_whose_date_an_edit_moves_is_kept_warm_once(tmp_path: Path) -> None:
    upstream, clock = AnthropicUpstream(), Clock()
    with proxied(tmp_path, upstream, 400, clock=clock, breakpoints="5m", keep_warm_tokens=10**9) as (client, services):
        for minute, texts in enumerate((("one",), ("one", "Yes.", "two")), 10):
            ask(client, *texts, system=f"{LONG}It is 10:{minute}")
            until(lambda: any(session.ended == clock.now for session in sessions(services)))
            clock.now += 1
        assert len(sessions(services)) == 1
        assert upstream.bodies[-1]["messages"][-1]["content"][-1]["text"].endswith("It is 10:11")
