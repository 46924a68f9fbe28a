"""The advice of a loss avoids its cause."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvproxy.apis.json import Json, JsonObject
from kvproxy.journal.sessions.advice import Advice, advise
from kvproxy.settings.journal import PriceSettings
from tests.journal.sessions.requests import SYSTEM, Sessions, assistant, provider, request, user

FIRST = [SYSTEM, user("How does a cache work?")]
LATER = [*FIRST, assistant("It keeps answers."), user("And a block?")]
TOOLS: list[Json] = [{"name": name, "description": f"{name} files. " * 300} for name in ("read", "mcp__x__y", "write")]


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    opened = Sessions(str(tmp_path / "journal.db"))
    yield opened
    opened.close()


def advice(sessions: Sessions) -> list[Advice]:
    return advise(sessions.reader().all_turns(), {}, "USD").rows


def _with_tools(tools: list[Json], **more: Json) -> JsonObject:
    return {"system": str(SYSTEM["content"]) * 40, "tools": tools, **more}


@pytest.mark.parametrize(
    ("before", "after", "place", "remedy"),
    [
        (_with_tools(TOOLS[::2]), _with_tools(TOOLS), "tools[1] mcp__x__y (added)", "start MCP servers before it"),
        (_with_tools(TOOLS), _with_tools(TOOLS[:2]), "tools[2] write (removed)", "send the same tools"),
        (_with_tools(TOOLS), _with_tools(TOOLS[::-1]), "tools (the same 3, in another order)", "the edit sort-tools"),
        (
            _with_tools([*TOOLS, {"name": "now", "description": "10:01"}]),
            _with_tools([*TOOLS, {"name": "now", "description": "10:02"}]),
            "tools[3] now.description",
            "into the last message",
        ),
        (_with_tools(TOOLS), {"system": _with_tools([])["system"]}, "tools", "add-tools"),
        (
            _with_tools(TOOLS, thinking={"type": "enabled", "budget_tokens": 1_024}),
            _with_tools(TOOLS, thinking={"type": "enabled", "budget_tokens": 2_048}),
            "thinking",
            "one value",
        ),
        (_with_tools(TOOLS), {**_with_tools(TOOLS), "system": "It is 10:02."}, "system", "kvproxy lint writes an edit"),
        (_with_tools(TOOLS), _with_tools(TOOLS, model="other"), "model", "switch the model between sessions"),
    ],
)
def test_the_remedy_of_a_change_follows_its_kind(
    sessions: Sessions, before: JsonObject, after: JsonObject, place: str, remedy: str
) -> None:
    named: dict[str, Any] = {"api": "messages", "headers": {"x-session-id": "s"}}
    long = [user("How does a cache work? " * 400), assistant("It keeps answers."), user("And a block?")]
    for at, (body, messages) in enumerate(((before, long[:1]), (after, long))):
        sessions.add(request(messages, 9_000, 0, 9 * at, body=body, **named))
    row = next(row for row in advice(sessions) if row.cause == "changed")
    assert (row.place, remedy in row.remedy) == (place, True), row


def test_a_dropped_image_has_no_remedy_for_texts(sessions: Sessions) -> None:
    image: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 8_000}}
    parts: list[Json] = [{"type": "text", "text": "See this. " * 400}, image]
    answer = [assistant("A cat."), user("And now? " * 400)]
    named: dict[str, Any] = {"api": "messages", "headers": {"x-session-id": "s"}}
    sessions.add(
        request([{"role": "user", "content": parts}, *answer], 4_000, 0, 0, **named),
        request([{"role": "user", "content": parts[:1]}, *answer, *answer], 4_000, 0, 9, **named),
    )
    (row,) = advice(sessions)
    assert (row.cause, row.place) == ("changed", "messages[0] user content[1] (removed)")
    assert "also images" in row.remedy


def test_a_changed_answer_is_repaired_by_the_rule(sessions: Sessions) -> None:
    changed = [*LATER[:2], assistant("It keeps " * 200), *LATER[3:], assistant("A part."), user("So?")]
    long = [*LATER[:2], assistant("It keeps answers. " * 100), *LATER[3:]]
    sessions.add(request(long, 1_000, 0, 0), request(changed, 1_020, 120, 9))
    row = next(row for row in advice(sessions) if row.cause == "changed")
    assert (row.place, "repair_history" in row.remedy) == ("messages[n] assistant", True)


@pytest.mark.parametrize(
    ("model", "sent", "cause", "remedy"),
    [
        ("gpt-5.1-codex", {}, "expired", 'prompt_cache_retention = "24h"'),
        ("gpt-5.1-codex", {"prompt_cache_retention": "24h"}, "evicted", "prompt_cache_key"),
        ("gpt-5.5", {}, "evicted", "prompt_cache_key"),
        ("gpt-5.6", {}, "expired", 'prompt_cache_options.ttl = "12h"'),
        ("gpt-5.6", {"prompt_cache_options": {"ttl": "12h"}}, "evicted", "prompt_cache_key"),
        ("gpt-4o", {}, "expired", "shorten the pauses"),
    ],
)
def test_openai_stores_a_prefix_for_the_lifetime_that_the_request_names(
    sessions: Sessions, model: str, sent: JsonObject, cause: str, remedy: str
) -> None:
    for at, messages in ((0, FIRST), (7_000, LATER)):
        sessions.add(request(messages, 9_000 + at // 100, 0, at, body={"model": model, **sent}, **provider()))
    (row,) = advice(sessions)
    assert (row.cause, remedy in row.remedy) == (cause, True), row


def test_advice_separates_reuse_between_sessions_from_reuse_within_sessions(sessions: Sessions) -> None:
    system: JsonObject = {**SYSTEM, "content": str(SYSTEM["content"]) * 200}
    first, later, other = ([system, *messages[1:]] for messages in (FIRST, LATER, [SYSTEM, user("What is a token?")]))
    for at, (name, messages) in enumerate((("a", first), ("a", later), ("b", other))):
        sessions.add(request(messages, 9_000, 0, 9_000 * at, headers={"x-session-id": name}, **provider()))
    within, between = advice(sessions)
    assert [row.cause for row in (within, between)] == ["expired", "expired"]
    assert (within.reuse, "keep_warm_tokens" in within.remedy) == ("within sessions", True)
    assert (between.reuse, 'breakpoints = "1h"' in between.remedy) == ("between sessions", True)


def test_an_expired_prefix_names_the_end_of_its_keep_warm_requests(sessions: Sessions) -> None:
    sessions.add(request(FIRST, 9_000, 0, 0, written=(9_000, 0), **provider()))
    sessions.journal.record_keep_warm("r0", "2 sent: the session was too unlikely to continue")
    sessions.add(request(LATER, 9_200, 0, 3_000, written=(9_200, 0), **provider()))
    (row,) = advice(sessions)
    assert (row.cause, row.remedy) == (
        "expired",
        "see why the keep-warm requests ended: the session was too unlikely to continue",
    )


@pytest.mark.parametrize(("tokens", "left_out"), [(4_000, 1), (40, 0)])
def test_a_loss_of_nearly_nothing_is_counted_but_not_advised(sessions: Sessions, tokens: int, left_out: int) -> None:
    prices = {"m": PriceSettings(input=3, cached=0.3)}
    changed = [{**SYSTEM, "content": f"{SYSTEM['content']} Now."}, *LATER[1:]]
    sessions.add(
        request([user("Something else. " * 9_000)], 1_000 * tokens, 0, 0),
        request(FIRST, 4_000, 0, 9),
        request(changed, 4_060, 16, 18),
    )
    report = advise((turn.with_cost(prices) for turn in sessions.reader().all_turns()), prices, "USD")
    assert (report.left_out, len(report.rows)) == (left_out, 1 - left_out)


PRICES = {"m": PriceSettings(input=1, cached=0.1, write_5m=1.25, write_1h=2)}
SYSTEM_ONLY: dict[str, Any] = {"body": {"cache_control": {"type": "ephemeral"}}, "api": "messages", **provider()}


def priced_advice(sessions: Sessions) -> dict[tuple[str, str], Advice]:
    rows = advise((turn.with_cost(PRICES) for turn in sessions.reader().all_turns()), PRICES, "USD").rows
    return {(row.cause, row.reuse): row for row in rows}


def _conversation(count: int) -> list[JsonObject]:
    texts = [f"{number} " + "How does a cache work? " * 600 for number in range(2 * count - 1)]
    return [assistant(text) if number % 2 else user(text) for number, text in enumerate(texts)]


def test_the_price_of_more_writes_is_subtracted_from_the_saving_of_breakpoints(sessions: Sessions) -> None:
    for number in range(2):
        body: dict[str, Any] = {"api": "messages", "written": (0, 0), **provider()}
        sessions.add(request(_conversation(number + 1), 4_000 * (2 * number + 1), 0, 9 * number, **body))
    row = priced_advice(sessions)["unmarked", "within sessions"]
    assert row.lost_cost == pytest.approx(4_000 * 0.9 / 1e6)
    # The first prompt and the rest of the second one.
    assert row.saved == pytest.approx(row.lost_cost - 12_000 * 0.25 / 1e6)


def test_breakpoints_that_cost_more_than_they_save_are_not_advised(sessions: Sessions) -> None:
    """Each session writes far more tokens than the system prompt, which it could read from other sessions."""
    for number in range(3):
        messages = [{**SYSTEM, "content": str(SYSTEM["content"]) * 40}, user(f"{number} " + "Read this file. " * 9_000)]
        body: dict[str, Any] = {"headers": {"x-session-id": f"{number}"}, "written": (60_000, 0), **provider()}
        sessions.add(request(messages, 60_000, 0, 900 * number, **body))
    assert advice(sessions)[0].cause == "expired"
    assert priced_advice(sessions) == {}


def test_the_price_of_keep_warm_requests_is_subtracted_from_the_saving(sessions: Sessions) -> None:
    at, reused = 0, 0
    for number, pause in enumerate((9, 9, 9, 400, 9, 9, 9)):
        tokens = 40_000 + 400 * number
        body: dict[str, Any] = {"written": (tokens - reused, 0), "headers": {"x-session-id": "s"}, **provider()}
        sessions.add(request(_conversation(number + 1), tokens, reused, at, **body))
        at, reused = at + pause, 0 if pause == 400 else tokens
    (row,) = priced_advice(sessions).values()
    assert (row.cause, row.lost_cost) == ("expired", pytest.approx(41_200 * 1.15 / 1e6))
    assert row.saved is not None
    assert 0 < row.saved < row.lost_cost


def test_no_lifetime_is_advised_for_sessions_that_are_hours_apart(sessions: Sessions) -> None:
    system: JsonObject = {**SYSTEM, "content": str(SYSTEM["content"]) * 80}
    for number, at in enumerate((0, 900, 20_000)):
        body: dict[str, Any] = {"headers": {"x-session-id": f"{number}"}, "written": (9_000, 0), **provider()}
        sessions.add(request([system, user(f"Question {number}")], 9_000, 0, at, **body))
    row = priced_advice(sessions)["expired", "between sessions"]
    lost = sessions.last().lost["expired"]
    assert row.tokens == 2 * lost
    assert row.saved == pytest.approx((lost * 1.15 - (3 * 9_000 - 2 * lost) * 0.75) / 1e6)
