"""Each prompt token is reused, or lost to one cause."""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvproxy.analyse.turn_losses import turn_losses
from kvproxy.apis.json import Json, JsonObject, dumps, objects
from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.backends.protocol import ServingUpstream
from kvproxy.exchange import CacheHit, Exchange
from kvproxy.journal.miss_explanation import explain_in_sentences, explain_miss
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.savings import savings
from kvproxy.journal.sessions.advice import advise
from kvproxy.journal.sessions.ledger import CAUSES, ExpectedReuse, lost_tokens, main_cause
from kvproxy.journal.sessions.ledger_report import ledger_of
from kvproxy.settings.journal import PriceSettings
from tests.commands.run import kvproxy
from tests.journal.sessions.injected_losses import Result, run_engine, run_openai, run_provider
from tests.journal.sessions.requests import SYSTEM, Sessions, assistant, provider, request, user

COUNTS, YES_OR_NO = st.integers(0, 20_000), st.booleans()
EARLIER = st.builds(
    ExpectedReuse,
    *(COUNTS, YES_OR_NO, COUNTS, YES_OR_NO, st.none() | COUNTS),
    *(YES_OR_NO, YES_OR_NO, YES_OR_NO, YES_OR_NO, COUNTS, COUNTS, COUNTS),
    ready=st.none() | COUNTS,
)


@pytest.fixture
def place(tmp_path: Path) -> str:
    """The causes do not depend on the database."""
    return str(tmp_path / "journal.db")


@given(COUNTS, st.none() | COUNTS, EARLIER)
@example(39, 1, ExpectedReuse(20, is_exact=False, answer=19, answer_changed=True, diverges=True))
def test_reused_and_lost_tokens_add_up(prompt: int, reused: int | None, earlier: ExpectedReuse) -> None:
    lost = lost_tokens(prompt, reused, earlier)
    assert sum(lost.values()) + min(reused or 0, prompt) == prompt
    assert all(tokens > 0 for tokens in lost.values())
    assert set(lost) <= set(CAUSES)


@pytest.mark.parametrize(
    ("prompt", "prefix", "lost"),
    [
        (189, ExpectedReuse(179, is_exact=False, block=16), {"evicted": 176, "new": 13}),
        (189, ExpectedReuse(160, answer=19, moved=True, block=16), {"moved": 176, "new": 13}),
        # The engine computes the last token of a prompt in any case.
        (192, ExpectedReuse(192, block=16), {"evicted": 176, "new": 16}),
        (192, ExpectedReuse(192), {"evicted": 192}),
    ],
)
def test_an_engine_loses_whole_blocks(prompt: int, prefix: ExpectedReuse, lost: dict[str, int]) -> None:
    assert lost_tokens(prompt, 0, prefix) == lost


@pytest.mark.parametrize(
    ("prompt", "reused", "change", "lost"),
    [
        # A date near the beginning: without it, OpenAI would have cached 9 steps of 128 tokens.
        (1_284, 0, ExpectedReuse(repeated=1_261), {"changed": 1_152, "new": 132}),
        (1_284, 0, ExpectedReuse(repeated=1_251, beginning=10), {"changed": 1_152, "new": 132}),
        # The reused steps, the text up to the change, and the text after it.
        (2_000, 1_024, ExpectedReuse(1_100, repeated=500, beginning=10), {"changed": 512, "new": 464}),
        (2_000, 0, ExpectedReuse(1_100, expired=True, repeated=500), {"expired": 1_024, "changed": 512, "new": 464}),
        (2_000, 0, ExpectedReuse(500, is_cut=True, repeated=700), {"changed": 1_152, "new": 848}),
        (2_000, None, ExpectedReuse(1_100, repeated=500), {"unreported": 1_100, "changed": 436, "new": 464}),
        # The repeated tools of a sub-agent with another system prompt are too short, with or without a removed tool.
        (2_300, 0, ExpectedReuse(repeated=442, beginning=200), {"minimum": 642, "new": 1_658}),
        # The report contradicts the rule, so the steps are unknown.
        (2_000, 1_000, ExpectedReuse(1_000, repeated=300), {"changed": 300, "new": 700}),
    ],
)
def test_a_change_costs_the_whole_steps_that_the_provider_would_have_reused(
    prompt: int, reused: int | None, change: ExpectedReuse, lost: dict[str, int]
) -> None:
    assert lost_tokens(prompt, reused, replace(change, minimum=1_024, step=128)) == lost


FIRST = [SYSTEM, user("How does a cache work?")]
ANSWER = assistant("It keeps answers.", reasoning_content="The user asks about caches.")
SECOND = [*FIRST, ANSWER, user("And a block?")]


ENGINE = request(FIRST, 1_000, 0, 0, answer=ANSWER, completion=40)
CASES: dict[str, tuple[list[Exchange], dict[str, int]]] = {
    "continued": ([ENGINE, request(SECOND, 1_060, 1_040, 9)], {"new": 20}),
    "evicted": ([ENGINE, request(SECOND, 1_060, 320, 9)], {"evicted": 720, "new": 20}),
    "answer with other tokens": ([ENGINE, request(SECOND, 1_060, 992, 9)], {"retokenised": 48, "new": 20}),
    "expired": (
        [
            request(FIRST, 10_000, 0, 0, written=(9_990, 0), **provider()),
            request(SECOND, 10_200, 9_990, 200, written=(200, 0), **provider()),
            request(SECOND, 10_200, 0, 600, written=(10_190, 0), **provider()),
        ],
        {"expired": 10_190, "new": 10},
    ),
    "without a breakpoint": (
        [
            request(FIRST, 10_000, 0, 0, written=(4_000, 0), **provider()),
            request(SECOND, 10_200, 4_000, 20, written=(0, 0), **provider()),
        ],
        {"unmarked": 6_000, "new": 200},
    ),
    "below the minimum": (
        [
            request(FIRST, 800, 0, 0, written=(0, 0), **provider()),
            request(SECOND, 900, 0, 20, written=(0, 0), **provider()),
        ],
        {"minimum": 800, "new": 100},
    ),
    "another upstream": (
        [
            request(FIRST, 1_000, 0, 0, served_by=ServingUpstream("http://a", is_engine=True), completion=0),
            request(SECOND, 1_060, 0, 20, served_by=ServingUpstream("http://b", is_engine=True)),
        ],
        {"moved": 1_000, "new": 60},
    ),
    "no report": (
        [request(FIRST, 1_000, None, 0), request(SECOND, 1_060, None, 20)],
        {"unreported": 1_000, "new": 60},
    ),
    "compacted history": (
        [
            request(FIRST, 1_000, 0, 0, headers={"x-session-id": "s"}),
            request([SYSTEM, user("We read files. " * 30)], 900, 480, 9, headers={"x-session-id": "s"}),
        ],
        {"new": 420},
    ),
}


def test_a_change_of_a_prompt_that_no_provider_caches_is_below_the_minimum(sessions: Sessions) -> None:
    changed: list[JsonObject] = [{**SYSTEM, "content": f"2026-11-30 {SYSTEM['content']}"}, *FIRST[1:]]
    fields: dict[str, Any] = {"body": {"model": "gpt-4o"}, "headers": {"x-session-id": "s"}, **provider()}
    sessions.add(request(FIRST, 700, 0, 0, **fields), request(changed, 705, 0, 9, **fields))
    assert sessions.last().lost.keys() == {"minimum", "new"}


def test_a_stored_prompt_shows_a_smaller_minimum_than_the_published_one(sessions: Sessions) -> None:
    """Claude Opus 4.5 caches no prefix below 4,096 tokens, but this upstream stored one."""
    changed: list[JsonObject] = [{**SYSTEM, "content": f"2026-11-30 {SYSTEM['content']}"}, *SECOND[1:]]
    fields: dict[str, Any] = {"body": {"model": "claude-opus-4-5"}, "headers": {"x-session-id": "s"}, **provider()}
    sessions.add(
        request(FIRST, 3_268, 0, 0, written=(3_268, 0), **fields),
        request(changed, 3_702, 0, 9, written=(3_702, 0), **fields),
    )
    turn = sessions.last()
    assert turn.region == "messages[0] system"
    assert turn.lost["changed"] > 3_000
    assert "minimum" not in turn.lost


def test_a_short_prompt_after_a_longer_one_is_below_the_minimum(sessions: Sessions) -> None:
    fields: dict[str, Any] = {"body": {"model": "gpt-4o"}, "headers": {"x-session-id": "s"}, **provider()}
    long = [*FIRST, assistant("We read files. " * 200), user("And a block?")]
    short = [*FIRST, assistant("(removed)"), user("And a block?"), assistant("No."), user("Stop.")]
    sessions.add(request(long, 1_400, 0, 0, **fields), request(short, 650, 0, 9, **fields))
    assert sessions.last().parent is not None
    assert set(sessions.last().lost) <= {"minimum", "new"}
    assert sessions.last().lost["minimum"] > 100


@pytest.mark.parametrize(
    ("model", "lost"),
    [
        # OpenAI caches multiples of 128 tokens.
        ("gpt-4o", {"evicted": 3_968, "new": 92}),
        ("m", {"evicted": 3_968, "new": 92}),
        ("claude-opus-5", {"unmarked": 4_000, "new": 60}),
    ],
)
def test_writes_of_zero_say_nothing_about_an_automatic_cache(
    sessions: Sessions, model: str, lost: dict[str, int]
) -> None:
    """LiteLLM reports `cache_creation_input_tokens: 0` for all providers."""
    fields: dict[str, Any] = {"body": {"model": model}, "written": (0, 0), **provider()}
    sessions.add(request(FIRST, 4_000, 0, 0, **fields), request(SECOND, 4_060, 0, 9, **fields))
    assert sessions.last().lost == lost
    assert (sessions.last().written_5m is None) == (model != "claude-opus-5")


@pytest.mark.parametrize("name", CASES)
def test_lost_tokens_have_a_cause(sessions: Sessions, name: str) -> None:
    exchanges, lost = CASES[name]
    sessions.add(*exchanges)
    assert sessions.last().lost == lost


def test_dropped_reasoning_is_a_change(sessions: Sessions) -> None:
    dropped = [*FIRST, assistant("It keeps answers."), user("And a block?")]
    sessions.add(request(FIRST, 1_000, 0, 0, answer=ANSWER, completion=400), request(dropped, 1_060, 992, 9))
    turn = sessions.last()
    assert turn.region == "messages[2] assistant reasoning"
    assert turn.lost["changed"] > 30
    assert "retokenised" not in turn.lost


def test_a_changed_system_prompt_names_the_character(sessions: Sessions) -> None:
    content = str(SYSTEM["content"])
    changed: list[JsonObject] = [{**SYSTEM, "content": f"{content[:290]}{content[290:].swapcase()}"}, *SECOND[1:]]
    sessions.add(request(FIRST, 1_000, 0, 0), request(SECOND, 1_060, 1_000, 9), request(changed, 1_060, 480, 20))
    turn = sessions.last()
    start = content.rfind(" ", 0, 290) + 1
    assert (turn.region, turn.place) == ("messages[0] system", start)
    assert main_cause(turn.lost) == "changed"


def test_reordered_tools_are_no_new_text(sessions: Sessions) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "description": f"{name} files. " * 20}}
        for name in ("read", "write", "list", "find")
    ]
    for at, order in enumerate(((0, 1, 2, 3), (2, 0, 3, 1))):
        ordered = {"tools": [tools[index] for index in order]}
        sessions.add(request(FIRST, 1_000, 0, 9 * at, body=ordered, headers={"x-session-id": "s"}))
    turn = sessions.last()
    assert (turn.region, turn.place) == ("tools (the same 4, in another order)", None)
    assert turn.lost["changed"] > 950


def _alternating_tools(turns: int, *, cleared_at: int | None = None) -> list[Exchange]:
    """Turns of an agent that sends its tools in turn in two orders. From one turn on, it sends an earlier text shortened."""
    listed = objects(_tools()["tools"])
    messages, exchanges = FIRST, list[Exchange]()
    for turn in range(turns):
        if turn == cleared_at:
            messages = [*messages[:3], user("[cleared]"), *messages[4:]]
        body: JsonObject = {
            "tools": list[Json](listed if turn % 2 == 0 else listed[::-1]),
            "model": "claude-sonnet-4-5",
        }
        tokens = len(dumps([body["tools"], *messages])) // 4
        exchanges.append(
            request(messages, tokens, 0, 9.0 * turn, body=body, headers={"x-session-id": "s"}, **provider())
        )
        messages = [*messages, assistant(f"Step {turn}. " * 40), user(f"Result {turn}. " * 160)]
    return exchanges


def test_text_that_was_sent_after_another_order_of_tools_is_changed(sessions: Sessions) -> None:
    """The tools of the third turn have the order of the first one, and its later messages were sent in the second turn."""
    first, second, third = _alternating_tools(3)
    sizes = [exchange.facts.usage[0] or 0 for exchange in (first, second, third)]
    third.facts.prefix = PrefixReuse(sizes[2], sizes[0])
    sessions.add(first, second, third)
    turn = sessions.last()
    assert turn.region == "tools (the same 4, in another order)"
    assert turn.lost["changed"] == pytest.approx(sizes[1] - sizes[0], rel=0.05)
    assert turn.lost["new"] == pytest.approx(sizes[2] - sizes[1], rel=0.05)


def test_text_that_only_an_older_turn_sent_is_changed(sessions: Sessions) -> None:
    """The earlier turns with the same beginning end before the texts that a turn with other tools sent."""
    exchanges = _alternating_tools(4, cleared_at=3)
    sessions.add(*exchanges)
    lost = sessions.last().lost
    new = [user("[cleared]"), assistant("Step 2. " * 40), user("Result 2. " * 160)]
    assert lost["new"] == pytest.approx(len(dumps(new)) // 4, rel=0.1)


def _tools(**edited: str) -> JsonObject:
    names = ("read", "write", "list", "find")
    texts = {name: edited.get(name, f"Tool {name}: {name} the files of a folder. " * 20) for name in names}
    return {"tools": [{"type": "function", "function": {"name": name, "description": texts[name]}} for name in names]}


def test_tools_before_an_edited_one_were_sent_before(sessions: Sessions) -> None:
    """A provider stores no prefix that ends between two tools."""
    edited = _tools(list="Tool list: list the folders of a folder. " * 20)
    sessions.add(
        request(FIRST, 4_000, 0, 0, body=_tools(), written=(4_000, 0), **provider()),
        request(SECOND, 4_100, 4_000, 9, body=_tools(), written=(100, 0), **provider()),
        request(
            [*SECOND, assistant("Yes."), user("Why?")], 4_200, 0, 18, body=edited, written=(4_200, 0), **provider()
        ),
    )
    turn = sessions.last()
    assert (turn.region, turn.place) == ("tools[2] list.description", 20)
    assert turn.lost.keys() == {"changed", "new"}
    # The edited tool is a quarter of the tools.
    assert turn.lost["new"] < 1_100


def test_a_change_that_cuts_a_prefix_below_the_minimum_is_the_cause(sessions: Sessions) -> None:
    changed: list[JsonObject] = [{**SYSTEM, "content": f"Now: 10:02. {SYSTEM['content']}"}, *SECOND[1:]]
    tools = _tools(**dict.fromkeys(("read", "write", "list"), "x"), find="Find files. " * 3)
    sessions.add(
        request(FIRST, 2_000, 0, 0, body=tools, written=(2_000, 0), **provider()),
        request(changed, 2_100, 0, 9, body=tools, written=(2_100, 0), **provider()),
    )
    turn = sessions.last()
    assert (turn.parent, turn.region, turn.lost.keys()) == (1, "messages[0] system", {"changed", "new"})


def _sibling(name: str, at: float, reused: int, begins: float, ends: float) -> Exchange:
    """A sub-agent with the system prompt of the others, whose answer begins and ends `begins` and `ends` s after START."""
    sent = request(
        [SYSTEM, user(f"{name}: read files. ")], 2_400, reused, at, written=(2_400 - reused, 0), **provider()
    )
    sent.first_byte, sent.ended = sent.started + begins - at, sent.started + ends - at
    return sent


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_prefix_of_a_request_without_an_answer_yet_is_concurrent(place: str, is_restarted: bool) -> None:
    sessions, lost = Sessions(place), list[set[str]]()
    # The first two end after a turn of the third, and the last one comes after the answers.
    for sent in (
        _sibling("c", 0.2, 0, 1.2, 2.0),
        _sibling("c, again", 2.5, 2_300, 3.0, 4.0),
        _sibling("a", 0.0, 0, 1.0, 9.0),
        _sibling("b", 0.1, 0, 1.1, 9.1),
        _sibling("d", 10.0, 0, 11.0, 12.0),
    ):
        sessions.add(sent)
        lost.append(set(sessions.last().lost) - {"new"})
        if is_restarted:
            sessions.restart()
    assert lost == [set(), set(), {"concurrent"}, {"concurrent"}, {"evicted"}]
    (row,) = [row for row in sessions.reader().ledger("USD").rows if row.result == "concurrent"]
    assert row.tokens == pytest.approx(2 * 2_300, rel=0.05)
    sessions.close()


def test_a_request_that_was_answered_before_the_next_one_arrived_lost_nothing_to_it(sessions: Sessions) -> None:
    """Its response ended later, so the journal has it after the other one."""
    sessions.add(_sibling("b", 2.0, 2_300, 3.0, 4.0), _sibling("a", 0.0, 0, 1.0, 9.0))
    assert sessions.last().lost == {"new": 2_400}


def test_a_prefix_that_a_concurrent_request_read_was_evicted(sessions: Sessions) -> None:
    sessions.add(
        _sibling("a", 0.0, 0, 1.0, 2.0), _sibling("b", 9.0, 2_300, 10, 11.0), _sibling("c", 9.1, 0, 11.0, 12.0)
    )
    assert set(sessions.last().lost) == {"evicted", "new"}


def test_a_prefix_that_expired_before_concurrent_requests_is_concurrent(sessions: Sessions) -> None:
    sessions.add(_sibling("a", 0.0, 0, 1.0, 2.0), _sibling("b", 999.0, 0, 1_000.0, 1_001.0))
    assert set(sessions.last().lost) == {"expired", "new"}
    sessions.add(_sibling("c", 999.1, 0, 1_000.1, 1_001.1))
    assert set(sessions.last().lost) == {"concurrent", "new"}


MARK: JsonObject = {"cache_control": {"type": "ephemeral"}}


def test_writes_that_nobody_read_are_counted(sessions: Sessions) -> None:
    paid = provider()
    sessions.add(request(FIRST, 10_000, 0, 0, written=(10_000, 0), **paid))
    assert sessions.reader().ledger("USD").unread_writes == 10_000
    sessions.add(request(SECOND, 10_200, 10_000, 20, written=(200, 0), **paid))
    assert sessions.reader().ledger("USD").unread_writes == 200
    # A second reader of the same prefix reads no new writes, and another conversation writes its own.
    sessions.add(request([*FIRST, ANSWER, user("Why?")], 10_100, 10_000, 30, written=(100, 0), **paid))
    assert sessions.reader().ledger("USD").unread_writes == 300


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_turn_without_a_breakpoint_leaves_the_stored_prefix_to_later_turns(
    sessions: Sessions, is_restarted: bool
) -> None:
    def add(texts: int, tokens: int, reused: int, written: int, *, at: float, marked: bool = True) -> None:
        body = _messages(TALK[:texts], marked=marked)
        sessions.add(request([], tokens, reused, at, written=(written, 0), **body))
        if is_restarted:
            sessions.restart()

    add(1, 7_045, 0, 7_045, at=0)
    add(3, 7_945, 7_045, 900, at=9)
    add(5, 8_845, 0, 0, at=200, marked=False)
    add(5, 8_845, 0, 0, at=209, marked=False)
    assert sessions.last().lost == {"unmarked": 8_845}
    # The provider reads what the second turn wrote, and this turn writes the rest.
    add(5, 8_845, 7_945, 900, at=218)
    assert sessions.reader().ledger("USD").unread_writes == 900


@pytest.mark.parametrize(("at", "cause"), [(218, "evicted"), (320, "expired")])
def test_a_turn_without_a_breakpoint_renews_no_prefix_and_hides_none(sessions: Sessions, at: float, cause: str) -> None:
    sessions.add(
        request([], 7_945, 0, 0, written=(7_945, 0), **_messages(TALK[:3], marked=True)),
        request([], 8_845, 0, 200, written=(0, 0), **_messages(TALK, marked=False)),
        request([], 8_845, 0, at, written=(8_845, 0), **_messages(TALK, marked=True)),
    )
    assert sessions.last().lost == {cause: 7_945, "unmarked": 900}


def test_writes_are_not_counted_twice_after_a_restart(place: str) -> None:
    for number, made in enumerate(
        (
            request(FIRST, 10_000, 0, 0, written=(10_000, 0), **provider()),
            request(SECOND, 10_200, 10_000, 20, written=(200, 0), **provider()),
            request([*SECOND, ANSWER, user("So?")], 10_500, 10_200, 40, written=(300, 0), **provider()),
        )
    ):
        sessions = Sessions(place)
        sessions.add(made)
        assert sessions.reader().ledger("USD").unread_writes == (10_000, 200, 300)[number]
        sessions.close()


@pytest.mark.parametrize(
    ("diagnosis", "second", "agrees"),
    [
        ("unchanged", SECOND, True),
        ("messages_changed", SECOND, False),
        ("messages_changed", [*FIRST, assistant("Another answer."), user("And a block?")], True),
        ("tools_changed", [*FIRST, assistant("Another answer."), user("And a block?")], False),
        ("unchanged", [SYSTEM, user("How does another cache work?"), ANSWER, user("And a block?")], False),
        ("previous_message_not_found", SECOND, None),
        ("unavailable", SECOND, None),
        ("pending", SECOND, None),
    ],
)
def test_diagnoses_of_the_provider_are_compared(
    sessions: Sessions, diagnosis: str, second: list[JsonObject], agrees: bool | None
) -> None:
    third = [*SECOND, ANSWER, user("So?")] if second == SECOND else [*second, ANSWER, user("So?")]
    first = third[:-2] if second == SECOND else SECOND
    sessions.add(
        request(first, 10_000, 0, 0, **provider()), request(third, 10_200, 0, 20, diagnosis=diagnosis, **provider())
    )
    turn = sessions.last()
    assert (turn.diagnosis, turn.agrees) == (diagnosis, agrees)
    (row,) = sessions.reader().ledger("USD").diagnoses
    assert (row.turns, row.agreed, row.disagreed) == (1, agrees is True, agrees is False)


def _claude_code(system: str, at: float, reused: int, written: int, *, tools_marked: bool = False) -> Exchange:
    tool: JsonObject = {"name": "read", "description": "Reads a file. " * 800, "input_schema": {}}
    body: JsonObject = {
        "tools": [tool | MARK if tools_marked else tool],
        "system": [{"type": "text", "text": f"{system} Be careful. " * 20, **MARK}],
        "max_tokens": 9,
    }
    fields = provider()
    return request([user("Hi")], 3_700, reused, at, written=(written, 0), body=body, api="messages", **fields)


def test_tools_without_a_breakpoint_are_unmarked_if_the_system_prompt_differs(sessions: Sessions) -> None:
    sessions.add(_claude_code("Here.", 0, 0, 3_690), _claude_code("There.", 9, 0, 3_690))
    assert main_cause(sessions.last().lost) == "unmarked"
    assert "evicted" not in sessions.last().lost


def test_tools_with_a_breakpoint_are_evicted_if_the_system_prompt_differs(sessions: Sessions) -> None:
    sessions.add(*(_claude_code(name, at, 0, 3_690, tools_marked=True) for name, at in (("Here.", 0), ("There.", 9))))
    assert main_cause(sessions.last().lost) == "evicted"
    assert "unmarked" not in sessions.last().lost


def test_string_contents_that_the_proxy_marks_are_no_change(sessions: Sessions) -> None:
    def turn(marked: int, texts: list[str], at: float, reused: int, prompt: int) -> Exchange:
        messages: list[JsonObject] = []
        for place, text in enumerate(texts):
            content: Json = [{"type": "text", "text": text, **MARK}] if place == marked else text
            messages.append({"role": ("user", "assistant")[place % 2], "content": content})
        fields = provider()
        return request(messages, prompt, reused, at, written=(prompt - reused, 0), api="messages", **fields)

    texts = [f"{name} " * 900 for name in ("one", "two", "three", "four", "five")]
    sessions.add(
        turn(0, texts[:1], 0, 0, 2_000),
        turn(2, texts[:3], 9, 2_000, 4_000),
        turn(4, texts, 18, 4_000, 6_000),
    )
    assert sessions.last().lost == {"new": 2_000}


def test_another_model_is_a_change(sessions: Sessions) -> None:
    sessions.add(request(FIRST, 1_000, 0, 0), request(SECOND, 1_060, 0, 9, body={"model": "n"}))
    turn = sessions.last()
    assert turn.region == "model"
    assert turn.lost["changed"] > 800


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (request(FIRST, 1_000, 0, 0), request(FIRST, 1_000, 0, 9, body={"model": "n"})),
        # A comparison of models repeats whole conversations.
        (request(SECOND, 1_060, 0, 0), request(SECOND, 1_060, 0, 9, body={"model": "n"})),
        (
            request(FIRST, 1_000, 0, 0, headers={"x-session-id": "a"}),
            request(SECOND, 1_060, 0, 9, headers={"x-session-id": "b"}, body={"model": "n"}),
        ),
    ],
)
def test_the_first_session_of_another_model_is_new(sessions: Sessions, earlier: Exchange, later: Exchange) -> None:
    sessions.add(earlier, later)
    turn = sessions.last()
    assert (turn.lost, turn.region) == ({"new": turn.prompt_tokens}, None)


def test_the_first_turn_is_not_compared_with_another_api(sessions: Sessions) -> None:
    function: JsonObject = {"name": "read_file", "description": "Reads a file. " * 99}
    sessions.add(
        request(FIRST, 1_000, 0, 0, body={"tools": [{"type": "function", "function": function}]}),
        request(FIRST, 1_000, 0, 9, body={"tools": [function]}, api="messages"),
    )
    turn = sessions.last()
    assert (turn.lost, turn.region) == ({"new": 1_000}, None)


def test_sessions_of_another_model_hide_no_change(sessions: Sessions) -> None:
    changed: list[JsonObject] = [{**SYSTEM, "content": f"Today. {SYSTEM['content']}"}, *FIRST[1:]]
    other = request([user("A title?")], 90, 0, 5, body={"model": "n"})
    sessions.add(request(FIRST, 1_000, 0, 0), other, request(changed, 1_002, 0, 9))
    assert (main_cause(sessions.last().lost), sessions.last().region) == ("changed", "messages[0] system")


def test_a_named_session_may_change_its_history_and_its_model(sessions: Sessions) -> None:
    named = {"x-session-id": "a"}
    changed = [FIRST[0], user("How does this cache work?"), *SECOND[2:]]
    sessions.add(request(SECOND, 1_060, 0, 0, headers=named))
    sessions.add(request(changed, 1_060, 0, 9, headers=named, body={"model": "n"}))
    assert (main_cause(sessions.last().lost), sessions.last().region) == ("changed", "model")


def test_the_return_to_the_first_model_is_a_change(sessions: Sessions) -> None:
    # The text that only the other model got is changed, and the earlier prompt is not.
    long = [*SECOND, assistant("Blocks have tokens. " * 99), user("How many?")]
    whole = [*long, assistant("Sixteen."), user("Always?")]
    sessions.add(
        request(FIRST, 200, 0, 0, **provider()),
        request(long, 800, 0, 9, body={"model": "n"}, **provider()),
        request(whole, 820, 200, 18, **provider()),
    )
    turn = sessions.last()
    assert turn.region == "model"
    assert turn.lost == {"changed": pytest.approx(600, rel=0.05), "new": pytest.approx(20, abs=15)}


def test_tools_in_another_order_for_another_model_are_no_new_text(sessions: Sessions) -> None:
    tools: list[Json] = [{"name": name, "description": f"{name}s a file. " * 99} for name in ("Read", "Write")]
    sessions.add(
        request(FIRST, 1_000, 0, 0, body={"tools": tools}),
        request(SECOND, 1_060, 0, 9, body={"tools": tools[::-1], "model": "n"}),
    )
    turn = sessions.last()
    assert turn.region == "model"
    assert turn.lost["changed"] == pytest.approx(1_000, rel=0.05)


def test_a_prefix_that_was_written_for_an_hour_lasts(sessions: Sessions) -> None:
    sessions.add(
        request(FIRST, 10_000, 0, 0, written=(0, 9_990), **provider()),
        request(SECOND, 10_200, 0, 600, written=(0, 10_190), **provider()),
    )
    assert main_cause(sessions.last().lost) == "evicted"


def test_a_keep_warm_request_renews_the_lifetime(sessions: Sessions) -> None:
    kept = {"x-kvproxy-tags": "keep-warm"}
    sessions.add(
        request(FIRST, 10_000, 0, 0, written=(9_990, 0), **provider()),
        request(FIRST, 10_000, 9_990, 290, written=(0, 0), headers=kept, body={"max_tokens": 1}, **provider()),
        request(SECOND, 10_200, 0, 550, written=(10_190, 0), **provider()),
    )
    turn = sessions.last()
    assert (turn.parent, turn.pause) == (1, pytest.approx(549))
    assert main_cause(turn.lost) == "evicted"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_pause_of_a_keep_warm_request_follows_the_request_that_it_repeats(
    sessions: Sessions, is_restarted: bool
) -> None:
    kept: dict[str, Any] = {"headers": {"x-kvproxy-tags": "keep-warm"}, "body": {"max_tokens": 1}, **provider()}
    for made in (
        request(FIRST, 10_000, 0, 0, written=(9_990, 0), **provider()),
        request(SECOND, 10_200, 9_990, 4_000, written=(210, 0), **provider()),
        request(SECOND, 10_200, 10_190, 4_290, written=(0, 0), **kept),
        request(SECOND, 10_200, 10_190, 4_580, written=(0, 0), **kept),
        request([*SECOND, ANSWER, user("So?")], 10_500, 10_190, 4_801, written=(300, 0), **provider()),
    ):
        sessions.add(made)
        if is_restarted:
            sessions.restart()
    turns = sessions.turns()
    assert [turn.pause for turn in turns] == [None, *map(pytest.approx, (3_999, 289, 290, 800))]
    assert [(turn.turn, turn.parent) for turn in turns] == [(1, None), (2, 1), (2, 1), (2, 1), (3, 2)]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_writes_of_a_keep_warm_request_are_read_by_the_next_turn(sessions: Sessions, is_restarted: bool) -> None:
    kept = {"headers": {"x-kvproxy-tags": "keep-warm"}, "body": {"max_tokens": 1}}
    sessions.add(
        request(FIRST, 10_000, 0, 0, written=(10_000, 0), **provider()),
        request(SECOND, 10_200, 10_000, 20, written=(200, 0), **provider()),
        # The provider had dropped the prefix.
        request(SECOND, 10_200, 0, 310, written=(10_200, 0), **kept, **provider()),
    )
    if is_restarted:
        sessions.restart()
    sessions.add(request([*SECOND, ANSWER, user("So?")], 10_500, 10_200, 320, written=(300, 0), **provider()))
    assert sessions.reader().ledger("USD").unread_writes == 200 + 300


def test_the_ledger_of_all_requests_adds_up(tmp_path: Path) -> None:
    price = PriceSettings(input=3, cached=0.3, write_5m=3.75, write_1h=6, output=15)
    sessions = Sessions(str(tmp_path / "journal.db"), m=price)
    sessions.add(
        request(FIRST, 10_000, 0, 0, written=(10_000, 0), completion=0, **provider()),
        request(SECOND, 10_200, 0, 600, written=(10_200, 0), completion=1_000, **provider()),
    )
    report = sessions.reader().ledger("USD")
    assert report.prompt_tokens == 20_200 == sum(row.tokens for row in report.rows)
    assert report.written_5m == 20_200
    expired = next(row for row in report.rows if row.result == "expired")
    # They were written again for 3.75, and reading them would have cost 0.3.
    assert expired.cost == pytest.approx(10_000 * (3.75 - 0.3) / 1e6)
    assert [row.cost for row in report.rows if row.result == "new"] == [0.0]
    assert sessions.list()[0].cost == pytest.approx((20_200 * 3.75 + 1_000 * 15) / 1e6)
    # Writes cost more than plain input, so nothing was saved.
    with closing(JournalReader(sessions.place)) as reader:
        (row,) = savings(reader, "model", {"m": price})
    assert row.money == pytest.approx(-20_200 * 0.75 / 1e6)
    sessions.close()


def test_a_lost_token_has_the_price_of_the_write_that_replaced_it(tmp_path: Path) -> None:
    price = PriceSettings(input=3, cached=0.3, write_5m=3.75, write_1h=6, output=15)
    sessions = Sessions(str(tmp_path / "journal.db"), m=price)
    sessions.add(
        request(FIRST, 10_000, 0, 0, written=(10_000, 0), completion=0, **provider()),
        request(SECOND, 10_200, 0, 600, written=(0, 10_200), completion=0, **provider()),
    )
    report = sessions.reader().ledger("USD")
    expired = next(row for row in report.rows if row.result == "expired")
    assert (expired.tokens, expired.cost) == (10_000, pytest.approx(10_000 * (6 - 0.3) / 1e6))
    # Without the records, only the mean price of all writes is known.
    (mean,) = [row.cost for row in sessions.reader().ledger("USD", reads_records=False).rows if row.result == "expired"]
    assert mean == pytest.approx(10_000 * ((10_000 * 3.75 + 10_200 * 6) / 20_200 - 0.3) / 1e6)
    sessions.close()


def test_few_tokens_are_no_main_cause() -> None:
    assert main_cause({"changed": 4, "new": 900}) is None
    assert main_cause({"changed": 4, "expired": 160}) == "expired"


def test_the_beginning_of_a_session_below_the_minimum_is_its_main_cause_only_without_reuse() -> None:
    lost = {"minimum": 900, "changed": 20}
    assert [main_cause(lost, reused) for reused in (None, 0, 5_000)] == ["minimum", "minimum", "changed"]
    assert main_cause({"minimum": 900}, 5_000) is None


def test_a_session_without_reports_has_no_reused_tokens(sessions: Sessions, tmp_path: Path) -> None:
    sessions.add(request([SYSTEM, user("What is a block?")], 150, None, 0))
    assert [each.reused_tokens for each in sessions.list()] == [None]
    shown = kvproxy("sessions", "--columns", "Input,Reused,Share", "--data", tmp_path).stdout.splitlines()
    assert shown[1].split("\t") == ["150", "", ""]
    assert "prompt_tokens\t150\nreused_tokens\t\n" in kvproxy("sessions", "show", "1", "--data", tmp_path).stdout


def test_the_same_system_prompt_for_another_model_changes_nothing(sessions: Sessions) -> None:
    questions = [[SYSTEM, user(f"{number}: What is a block of the prefix cache?")] for number in range(2)]
    sessions.add(
        request(questions[0], 150, 0, 0),
        request(questions[0], 150, 0, 10, body={"model": "n"}),
        request(questions[1], 150, 128, 20),
    )
    (turn,) = sessions.reader().turns("r20")
    assert (turn.lost, turn.region) == ({"new": 22}, None)


def test_storage_is_charged_for_the_time_between_two_uses(tmp_path: Path) -> None:
    price = PriceSettings(input=1.25, cached=0.125, storage=4.5, output=10)
    sessions = Sessions(str(tmp_path / "journal.db"), m=price)
    sessions.add(
        request(FIRST, 10_000, 0, 0, completion=0, **provider()),
        request(SECOND, 10_200, 10_000, 1_801, completion=0, **provider()),
    )
    session, report = sessions.list()[0], sessions.reader().ledger("USD")
    hours = session.longest_pause / 3_600
    assert hours == pytest.approx(0.5, rel=0.01)
    assert report.storage == pytest.approx(10_000 * hours * 4.5 / 1e6, abs=4.5e-6)
    assert session.cost == pytest.approx((10_200 * 1.25 + 10_000 * (0.125 + hours * 4.5)) / 1e6)
    with closing(JournalReader(sessions.place)) as reader:
        (row,) = savings(reader, "model", {"m": price})
    assert row.money == pytest.approx(10_000 * (1.125 - hours * 4.5) / 1e6, abs=4.5e-6)
    sessions.close()


def _messages(texts: list[str], *, marked: bool, **body: Json) -> dict[str, Any]:
    messages: list[Json] = [
        {"role": ("user", "assistant")[place % 2], "content": [{"type": "text", "text": text}]}
        for place, text in enumerate(texts)
    ]
    whole: JsonObject = {
        "model": "claude-sonnet-4-5",
        "tools": [{"name": "read", "description": "Reads a file. " * 400, "input_schema": {}}],
        "system": [{"type": "text", "text": "Be careful. " * 400}],
        "messages": messages,
        **({"cache_control": {"type": "ephemeral"}} if marked else {}),
        **body,
    }
    return {"body": whole, "api": "messages", **provider()}


TALK = [f"{name} " * 400 for name in ("one", "two", "three", "four", "five")]


def test_a_request_without_a_breakpoint_loses_the_stored_prefix(sessions: Sessions) -> None:
    sessions.add(
        request([], 7_045, 0, 0, written=(7_045, 0), **_messages(TALK[:1], marked=True)),
        request([], 7_945, 0, 9, written=(0, 0), **_messages(TALK[:3], marked=False)),
    )
    turn = sessions.last()
    assert (turn.lost, turn.region) == ({"unmarked": 7_045, "new": 900}, "cache_control")
    with closing(JournalReader(sessions.place)) as reader:
        explained = explain_miss(reader, sessions.journal.latest(1)[0], lambda number: None)
    assert "In this request, cache_control is missing." in " ".join(explain_in_sentences(explained, str))


def test_a_request_without_a_breakpoint_names_its_change_and_the_missing_field(sessions: Sessions) -> None:
    first, second = (_messages(TALK[:1], marked=end == "aaa") for end in ("aaa", "bbb"))
    for sent, end in ((first, "aaa"), (second, "bbb")):
        sent["body"]["system"] = [{"type": "text", "text": "Be careful. " * 100 + end}]
    sessions.add(
        request([], 5_000, 0, 0, written=(5_000, 0), **first), request([], 5_000, 0, 9, written=(0, 0), **second)
    )
    turn = sessions.last()
    assert turn.lost["unmarked"] > turn.lost["changed"] > 0
    assert (turn.region, turn.place, turn.missing_mark) == ("system", 1_200, "cache_control")
    with closing(JournalReader(sessions.place)) as reader:
        explained = " ".join(
            explain_in_sentences(
                explain_miss(reader, sessions.journal.latest(1)[0], lambda number: None),
                str,
            )
        )
    assert "In this request, cache_control is missing." in explained
    assert "The first change is in the system prompt" in explained
    rows = {row.cause: (row.place, row.remedy) for row in advise([turn], {}, "USD").rows}
    assert rows["unmarked"][0] == "cache_control"
    assert "breakpoints" in rows["unmarked"][1]
    assert rows["changed"][0] == "system"
    assert "keep the text" in rows["changed"][1]
    losses = {loss.cause: (loss.region, loss.place) for loss in turn_losses([turn])}
    assert losses == {"unmarked": ("cache_control", None)}


@pytest.mark.parametrize("reused", [0, 3_000, 7_000])
@pytest.mark.parametrize(
    ("field", "value"),
    [("thinking", {"type": "adaptive"}), ("tool_choice", {"type": "none"}), ("output_config", {"effort": "high"})],
)
def test_a_changed_setting_loses_the_messages_and_with_some_models_all(
    sessions: Sessions, field: str, value: Json, reused: int
) -> None:
    system: list[Json] = [{"type": "text", "text": "Be careful. " * 400, "cache_control": {"type": "ephemeral"}}]
    first = _messages(TALK[:1], marked=True, system=system)
    second = _messages(TALK[:3], marked=True, system=system, **{field: value})
    sessions.add(
        request([], 7_000, 0, 0, written=(7_000, 0), **first),
        request([], 8_000, reused, 9, written=(8_000 - reused, 0), **second),
    )
    lost = sessions.last().lost
    assert set(lost) == ({"new"} if reused == 7_000 else {"changed", "new"})
    assert lost.get("changed", 0) >= 6_000 - reused
    assert sessions.last().region == (None if reused == 7_000 else field)


def test_a_change_of_an_earlier_version_has_no_missing_field_as_its_place(sessions: Sessions) -> None:
    sessions.add(
        request([], 7_045, 0, 0, written=(7_045, 0), **_messages(TALK[:1], marked=True)),
        request([], 7_945, 0, 9, written=(0, 0), **_messages(TALK[:3], marked=False)),
    )
    turn = replace(sessions.last(), lost={"unmarked": 7_045, "changed": 900})
    rows = {row.cause: (row.place, row.remedy) for row in advise([turn], {}, "USD").rows}
    assert rows["changed"][0] is None
    assert "keep the beginning" in rows["changed"][1]


def test_a_transcript_without_breakpoints_is_evicted_if_it_was_written_again(sessions: Sessions) -> None:
    sessions.add(
        request([], 7_045, 0, 0, written=(7_045, 0), **_messages(TALK[:1], marked=False)),
        request([], 7_945, 0, 9, written=(7_945, 0), **_messages(TALK[:3], marked=False)),
    )
    assert sessions.last().lost == {"evicted": 7_045, "new": 900}


def test_new_text_after_a_dropped_field_is_new_if_the_rest_was_reused(sessions: Sessions) -> None:
    sessions.add(
        request([], 7_000, 0, 0, written=(7_000, 0), **_messages(TALK[:1], marked=True, thinking={"type": "adaptive"})),
        request([], 7_048, 7_000, 9, written=(48, 0), **_messages([*TALK[:1], "a", "b"], marked=True)),
    )
    assert (sessions.last().lost, sessions.last().region) == ({"new": 48}, None)


def test_a_compaction_is_new_if_tools_and_system_prompt_were_reused(sessions: Sessions) -> None:
    # As in a transcript, which has no tools and no system prompt.
    plain: JsonObject = {"tools": [], "system": "", "thinking": None}
    summary = f"Summary: {' '.join(TALK[1:])[:900]} {TALK[0]}"
    sessions.add(
        request([], 24_000, 0, 0, written=(24_000, 0), **_messages(TALK, marked=True, **plain)),
        request([], 23_491, 20_000, 9, written=(3_491, 0), **_messages([summary, "b", "c"], marked=True, **plain)),
    )
    assert sessions.last().lost == {"new": 3_491}


def test_missing_tools_are_the_first_change(sessions: Sessions) -> None:
    first, second = (_messages(TALK[:count], marked=True) for count in (3, 5))
    del second["body"]["tools"]
    sessions.add(
        request([], 9_000, 0, 0, written=(9_000, 0), **first), request([], 8_000, 0, 9, written=(8_000, 0), **second)
    )
    assert sessions.last().region == "tools"
    assert main_cause(sessions.last().lost) == "changed"


_TOOLS: list[Json] = [
    {"type": "function", "name": name, "description": f"{name} files. " * 100} for name in ("read", "write")
]


@pytest.mark.parametrize("setting", [{"reasoning": {"effort": "high"}}, {"text": {"verbosity": "low"}}])
@pytest.mark.parametrize(
    ("more", "region"),
    [
        ({"instructions": "Now be careful. " * 200}, "instructions"),
        ({"tools": _TOOLS[:1]}, "tools[1] write (removed)"),
        ({"tools": None}, "tools"),
        ({}, None),
    ],
)
def test_a_changed_setting_hides_no_changed_tools_or_instructions(
    sessions: Sessions, setting: JsonObject, more: JsonObject, region: str | None
) -> None:
    before: JsonObject = {"instructions": "Be careful. " * 200, "tools": _TOOLS, "reasoning": {"effort": "low"}}
    after: JsonObject = {name: value for name, value in (before | setting | more).items() if value is not None}
    for at, (body, texts) in enumerate(((before, TALK[:1]), (after, TALK[:3]))):
        items: list[Json] = [
            {"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)
        ]
        named: dict[str, Any] = {"api": "responses", "headers": {"session-id": "s"}, **provider()}
        sent: JsonObject = {"model": "gpt-5.6", "input": items, **body}
        sessions.add(request([], 3_000, 0, 9.0 * at, body=sent, diagnosis="reasoning_effort_changed", **named))
    turn = sessions.last()
    assert turn.region == (region or next(iter(setting)))
    assert turn.lost["changed"] > 1_000
    assert turn.agrees is ("reasoning" in setting)


def test_another_model_loses_the_whole_earlier_prompt(sessions: Sessions) -> None:
    # Of 20,000 tokens, a transcript has neither the tools nor the system prompt.
    plain: JsonObject = {"tools": [], "system": ""}
    long = [*TALK[:3], "answer " * 3_000, "result " * 3_000]
    sessions.add(
        request([], 20_000, 0, 0, written=(20_000, 0), **_messages(TALK[:3], marked=True, **plain)),
        request(
            [], 26_000, 0, 9, written=(26_000, 0), **_messages(long, marked=True, model="claude-opus-4-5", **plain)
        ),
    )
    turn = sessions.last()
    assert (turn.region, turn.place) == ("model", None)
    assert turn.lost == {"changed": pytest.approx(20_000, rel=0.01), "new": pytest.approx(6_000, rel=0.03)}


@pytest.mark.parametrize(("pause", "cause"), [(9, "evicted"), (900, "expired")])
def test_a_deferred_tool_does_not_change_the_prefix(sessions: Sessions, pause: int, cause: str) -> None:
    plain = [{"name": name, "description": f"{name} a file. " * 400, "input_schema": {}} for name in ("edit", "write")]
    found: JsonObject = {"name": "fetch", "description": "Fetches. " * 400, "input_schema": {}, "defer_loading": True}
    tools: list[list[Json]] = [[*plain], [plain[0], found, plain[1]]]
    for at, listed in enumerate(tools):
        sent = _messages(TALK[: 1 + 2 * at], marked=True, tools=listed)
        sessions.add(request([], 5_000 + 900 * at, 0, pause * at, written=(5_000, 0), **sent))
    turn = sessions.last()
    assert (turn.region, turn.lost) == (None, {cause: 5_000, "new": 900})


def test_a_switch_of_the_model_continues_the_last_turn_without_its_reasoning(sessions: Sessions) -> None:
    # The first message of the user precedes a message of the system.
    def send(count: int, tokens: int, *, model: str, thinks: bool) -> None:
        sent = _messages(TALK[:count], marked=True, model=model)
        messages = sent["body"]["messages"]
        for message in messages[1::2] if thinks else ():
            message["content"].insert(0, {"type": "thinking", "thinking": "Hm. ", "signature": "S"})
        messages.insert(1, {"role": "system", "content": "The date is today."})
        headers = {"x-session-id": "s"}
        sessions.add(request([], tokens, 0, 9.0 * count, written=(tokens, 0), headers=headers, **sent))

    for turn in range(2):
        send(1 + 2 * turn, 4_000 + 1_000 * turn, model="claude-sonnet-4-5", thinks=True)
    send(5, 6_000, model="claude-opus-4-5", thinks=False)
    assert [each.turn for each in sessions.turns("s")] == [1, 2, 3]
    turn = sessions.last()
    assert turn.region == "model"
    # The tools, the system prompt, and the first two questions were sent before; two answers have no reasoning any more.
    assert turn.lost["changed"] == pytest.approx(6_000 * (10_400 + 4_000) / (10_400 + 9_600), rel=0.1)


def test_a_switch_to_a_model_with_a_larger_minimum_is_the_first_change(sessions: Sessions) -> None:
    smaller = TALK[:1]
    sessions.add(
        request([], 3_063, 0, 0, written=(3_063, 0), **_messages(smaller, marked=True)),
        request(
            [], 3_100, 0, 9, written=(0, 0), **_messages([*smaller, "a", "b"], marked=True, model="claude-haiku-4-5")
        ),
    )
    turn = sessions.last()
    assert (main_cause(turn.lost), turn.region) == ("minimum", "model")


COUNT = int(os.environ.get("KVPROXY_LOSSES", "12"))
"""Injected losses for each paid API."""


@pytest.mark.parametrize(("run", "count"), [(run_provider, COUNT), (run_openai, COUNT), (run_engine, 3)])
def test_the_ledger_finds_injected_losses(run: Callable[[int, int], Result], count: int) -> None:
    result = run(count, 7)
    assert result.unbalanced == 0
    assert result.wrong == []
    assert result.trials.total() == count
    compared = result.agreed + len(result.disagreed)
    assert compared >= (0 if run is run_engine else count)
    assert result.agreed >= 0.99 * compared


def test_reuse_is_counted_by_medium() -> None:
    upstream = ServingUpstream("http://e", predicted_tokens=1000, loaded={"CPU": 600, "DISK": 100})
    # The GPU has the first 300 tokens.
    reports = (None, 200, 300, 500, 950, 1000, 1200)
    assert [upstream.loaded_tokens(reused) for reused in reports] == [
        {},
        {},
        {},
        {"CPU": 200},
        {"CPU": 600, "DISK": 50},
        {"CPU": 600, "DISK": 100},
        {"CPU": 600, "DISK": 100},
    ]
    assert ServingUpstream("http://e").loaded_tokens(10) == {}
    counts = ({"reused": 900, "new": 100, "loaded_CPU": 200}, {"reused": 5, "loaded_CPU": 5})
    report = ledger_of([(None, each, ()) for each in counts], "")
    assert (report.prompt_tokens, report.loaded) == (1005, {"CPU": 205})


RULES: JsonObject = {
    "type": "text",
    "text": "Answer with care. " * 555,
    "cache_control": {"type": "ephemeral"},
}


def shown(system: JsonObject, *sources: JsonObject, question: str = "What is this?") -> JsonObject:
    images: list[Json] = [{"type": "image", "source": dict(source)} for source in sources]
    text: JsonObject = {"type": "text", "text": question, "cache_control": {"type": "ephemeral"}}
    return {"system": [system], "messages": [{"role": "user", "content": [*images, text]}]}


def by_url(name: str) -> list[JsonObject]:
    return [{"type": "url", "url": f"https://example.com/{name}{number}.png"} for number in range(3)]


def screenshot(letter: str) -> JsonObject:
    return {"type": "base64", "media_type": "image/png", "data": letter * 200_000}


def test_new_images_after_a_read_system_prompt_are_new(sessions: Sessions) -> None:
    hello, first, second = shown(RULES, question="Hello there"), shown(RULES, *by_url("a")), shown(RULES, *by_url("b"))
    sessions.add(request([], 2_510, 0, 0, written=(2_510, 0), body=hello, api="messages", **provider()))
    sessions.add(request([], 5_510, 2_499, 60, written=(3_011, 0), body=first, api="messages", **provider()))
    assert sessions.last().lost == {"new": 3_011}
    sessions.add(request([], 5_510, 2_499, 120, written=(3_011, 0), body=second, api="messages", **provider()))
    lost = sessions.last().lost
    assert lost["new"] > 2_990, lost


def test_a_new_screenshot_does_not_hide_that_the_system_prompt_changed(sessions: Sessions) -> None:
    dated = [{**RULES, "text": f"Today is day {day}. {RULES['text']}"} for day in (1, 2)]
    first, second = shown(dated[0], screenshot("A")), shown(dated[1], screenshot("B"))
    sessions.add(request([], 3_520, 0, 0, written=(3_520, 0), body=first, api="messages", **provider()))
    sessions.add(request([], 3_520, 0, 60, written=(3_520, 0), body=second, api="messages", **provider()))
    assert 2_350 < sessions.last().lost["changed"] < 2_650


def test_the_discount_of_a_hit_follows_the_breakpoints_of_its_own_prompt(tmp_path: Path) -> None:
    model = "claude-sonnet-4-5"
    sessions = Sessions(str(tmp_path / "journal.db"))

    def ask(texts: list[str], number: int, reused: int, written: int, *, marked: bool, hit: bool = False) -> None:
        stored = CacheHit("e", "e", age=1.0, ttl=60.0, prompt_tokens=9_600, completion_tokens=10)
        more: dict[str, Any] = {"layer": "exact", "hit": stored} if hit else {}
        asked = request([], 9_600, reused, 60 * number, written=(written, 0), **_messages(texts, marked=marked) | more)
        sessions.add(asked)

    def cached_tokens() -> int:
        with closing(JournalReader(sessions.place)) as reader:
            rows = savings(reader, "layer", {model: PriceSettings(input=3, cached=0.3, output=15)})
        return next(row.cached_tokens for row in rows if row.name == "exact")

    ask(TALK[:1], 0, 0, 9_600, marked=True)
    ask(TALK[:1], 1, 9_600, 0, marked=True)
    ask(TALK[:1], 2, 0, 0, marked=True, hit=True)
    before = cached_tokens()
    assert before > 9_500
    for number in range(3, 6):
        ask(TALK[1:2], number, 0, 0, marked=False)
    assert sessions.last().lost["unmarked"] > 9_000
    assert cached_tokens() == before
    ask(TALK[1:2], 6, 0, 0, marked=False, hit=True)
    assert cached_tokens() == before
    sessions.close()


@pytest.mark.parametrize(("tools_marked", "cause"), [(False, None), (True, "changed")])
def test_tools_of_a_sub_agent_are_changed_only_if_they_could_be_stored(
    sessions: Sessions, tools_marked: bool, cause: str | None
) -> None:
    """A sub-agent has another system prompt, and one tool less."""
    tools: list[JsonObject] = [
        {"name": name, "description": f"{name} files. " * 900} for name in ("read", "ask", "write")
    ]
    tools[-1] |= MARK if tools_marked else {}
    for at, system, sent in ((0, "You are a main agent. ", tools), (9, "You search files. ", [tools[0], tools[2]])):
        system_prompt: JsonObject = {"type": "text", "text": system * 90, **MARK}
        body: JsonObject = {"tools": list[Json](sent), "system": [system_prompt], "max_tokens": 9}
        tokens = len(dumps(body)) // 4
        made = request(
            [user(f"Step {at}")], tokens, 0, at, written=(tokens, 0), body=body, api="messages", **provider()
        )
        sessions.add(made)
    assert main_cause(sessions.last().lost) == cause
