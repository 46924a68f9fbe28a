"""Requests find the session that they continue."""

from math import inf
from typing import Any

import pytest

from kvproxy.apis.json import Json, JsonObject
from kvproxy.exchange import Exchange
from kvproxy.journal.sessions.session_matching import RegionContents
from kvproxy.settings.rules import EditSettings
from tests.journal.sessions.requests import SYSTEM, Sessions, assistant, provider, request, user

FIRST = [SYSTEM, user("How does a cache work?")]
SECOND = [*FIRST, assistant("It keeps answers."), user("And a block?")]
THIRD = [*SECOND, assistant("A part of a prompt."), user("Thanks, and eviction?")]


def numbered(sessions: Sessions) -> list[tuple[int, int, int | None]]:
    """Session, turn and parent of each request."""
    return [(turn.session, turn.turn, turn.parent) for turn in sessions.turns()]


def test_turns_of_a_conversation_are_one_session(sessions: Sessions) -> None:
    sessions.add(request(FIRST, 100, 0, 0), request(SECOND, 120, 100, 30), request(THIRD, 150, 120, 100))
    assert numbered(sessions) == [(1, 1, None), (1, 2, 1), (1, 3, 2)]
    assert [turn.pause for turn in sessions.turns()] == [None, pytest.approx(29), pytest.approx(69)]
    (found,) = sessions.list()
    assert (found.turns, found.prompt_tokens, found.reused_tokens) == (3, 370, 220)
    assert found.longest_pause == pytest.approx(69)


def test_a_session_without_a_request_for_an_hour_ends_with_an_infinite_pause(sessions: Sessions) -> None:
    sessions.add(request(FIRST, 100, 0, 0, api="messages"), request(SECOND, 120, 100, 30, api="messages"))
    last = sessions.last().time
    for seconds, pauses in ((3_599.5, [29]), (3_600.5, [inf, 29])):
        assert [pause for pause, *_ in sessions.reader().pauses(last + seconds)] == pytest.approx(pauses)


MOVED_DATE = EditSettings(name="date", action="move", pattern=r"(It is \d\d:\d\d\.)")


def _dated(
    messages: list[JsonObject],
    minute: int,
    prompt_tokens: int,
    *,
    reused: int | None = None,
    in_parts: bool = False,
    **more: Any,
) -> Exchange:
    """A turn of a client with the time in its system prompt, which an edit moves."""
    system: JsonObject = {"role": "system", "content": f"{SYSTEM['content']}It is 10:{minute}."}
    parts: list[JsonObject] = [
        {**message, "content": [{"type": "text", "text": message["content"]}]} if in_parts else message
        for message in messages[1:]
    ]
    body: JsonObject = {"messages": list[Json]([system, *parts])}
    reused = prompt_tokens - 15 if reused is None else reused
    return request([], prompt_tokens, reused, minute, body=body, edits=[MOVED_DATE], **more)


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("headers", [{}, {"x-session-id": "s"}])
def test_a_text_that_an_edit_moves_to_the_last_message_stays_out_of_the_recognition(
    sessions: Sessions, headers: dict[str, str], in_parts: bool
) -> None:
    turns = [(FIRST, 11, 155), (SECOND, 12, 170), (THIRD, 13, 185), (THIRD, 14, 185)]
    for messages, minute, tokens in turns:
        sessions.add(_dated(messages, minute, tokens, in_parts=in_parts, headers=headers))
        sessions.restart()
    assert numbered(sessions) == [(1, 1, None), (1, 2, 1), (1, 3, 2), (1, 3, 2)]
    assert [(turn.lost.keys(), turn.region) for turn in sessions.turns()[1:]] == [({"new"}, None)] * 3


def test_a_client_of_anthropic_marks_only_the_last_message_to_which_an_edit_moves_a_text(sessions: Sessions) -> None:
    """A breakpoint needs a block; the next turn has the same message as a text."""
    for turn in range(2):
        marked = {"type": "text", "text": "And a block?" if turn else "How?", "cache_control": {"type": "ephemeral"}}
        messages = [*([user("How?"), assistant("By blocks.")] if turn else []), {"role": "user", "content": [marked]}]
        body: JsonObject = {"messages": list[Json](messages), "system": f"{SYSTEM['content']}It is 10:{11 + turn}."}
        sessions.add(request([], 155 + 20 * turn, 140, turn, body=body, api="messages", edits=[MOVED_DATE]))
    assert numbered(sessions) == [(1, 1, None), (1, 2, 1)]


def test_the_text_of_an_edit_is_no_change_of_the_client(sessions: Sessions) -> None:
    long = [SYSTEM, user("How does a cache work? " * 100)]
    sessions.add(_dated(long, 11, 800), _dated([*long, *SECOND[2:]], 12, 820, reused=140))
    turn = sessions.last()
    assert (turn.turn, turn.region) == (2, "messages[1] user (text of an edit)")
    assert turn.lost["changed"] > 500


def test_tenants_share_no_session(sessions: Sessions) -> None:
    sessions.add(request(FIRST, 100, 0, 0), request(SECOND, 120, 100, 1, tenant="client:other"))
    assert len(sessions.list()) == 2


def test_a_branch_has_the_turn_before_it_as_parent(sessions: Sessions) -> None:
    other = [*SECOND[:3], user("And what is a token?")]
    sessions.add(
        request(FIRST, 100, 0, 0), request(SECOND, 120, 100, 1), request(THIRD, 150, 120, 2), request(other, 121, 96, 3)
    )
    assert numbered(sessions)[-1] == (1, 2, 1)


@pytest.mark.parametrize(
    "changed",
    [
        [{**SYSTEM, "content": "Today is Monday. " + str(SYSTEM["content"])}, *THIRD[1:]],
        [SYSTEM, user("How does a cache work? It is 10:01."), *THIRD[2:]],
        [*THIRD[:2], assistant("It keeps"), *THIRD[3:]],
    ],
    ids=["system prompt", "first message", "first answer"],
)
def test_a_changed_history_stays_in_its_session(sessions: Sessions, changed: list[JsonObject]) -> None:
    more = [*changed, assistant("Eviction frees blocks."), user("Which blocks first?")]
    sessions.add(
        request(FIRST, 100, 0, 0), request(SECOND, 120, 100, 1), request(THIRD, 150, 120, 2), request(more, 170, 0, 3)
    )
    assert sessions.last().session == 1


def call_items(kind: str, number: int) -> list[JsonObject]:
    """Output items of the Responses API, and the client's answer to them. None has a role."""
    call: JsonObject = {"type": kind, "id": f"i{number}", "call_id": f"c{number}", "name": "read", "arguments": "{}"}
    thought: JsonObject = {"type": "reasoning", "id": f"rs{number}", "summary": []}
    result = "mcp_approval_response" if kind == "mcp_approval_request" else f"{kind}_output"
    return [thought, call, {"type": result, "call_id": f"c{number}", "output": f"result {number}"}]


@pytest.mark.parametrize(
    "kind", ["function_call", "custom_tool_call", "computer_call", "local_shell_call", "mcp_approval_request"]
)
@pytest.mark.parametrize("instructions", ["Be brief. ", "It is 10:0%d. "])
def test_a_tool_loop_over_the_responses_api_is_one_session(sessions: Sessions, kind: str, instructions: str) -> None:
    items: list[Json] = [user("Fix the test.")]
    for turn in range(3):
        body: JsonObject = {"input": [*items], "instructions": instructions.replace("%d", str(turn)) * 20}
        sessions.add(request([], 100 + 20 * turn, 0, turn, api="responses", body=body))
        items += call_items(kind, turn)
    assert numbered(sessions) == [(1, 1, None), (1, 2, 1), (1, 3, 2)]


LONG_TASK = "Fix the test. " * 1_000


def _continued(
    sessions: Sessions,
    text: str,
    response: str,
    previous: str | None,
    at: float,
    usage: tuple[int, int],
    *,
    instructions: str = "Be brief. ",
    session: str | None = None,
) -> None:
    """Add a request whose history is at the provider. `usage` has prompt tokens and reused tokens."""
    body: JsonObject = {"input": text, "instructions": instructions * 20, "previous_response_id": previous}
    body = {"model": "gpt-5.1"} | {name: value for name, value in body.items() if value is not None}
    headers = {} if session is None else {"session_id": session}
    made = request([], *usage, at, body=body, api="responses", headers=headers, response_id=response, **provider())
    del made.request.body["messages"]  # type: ignore[union-attr]
    sessions.add(made)


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_requests_that_name_the_previous_response_are_turns_of_its_session(
    sessions: Sessions, session: str | None, is_restarted: bool
) -> None:
    for text, response, previous, at, usage in (
        (LONG_TASK, "resp_1", None, 0, (5_000, 0)),
        ("Continue.", "resp_2", "resp_1", 9, (5_200, 4_992)),
        ("Continue.", "resp_3", "resp_2", 18, (5_400, 0)),
        ("Stop.", "resp_4", "resp_2", 27, (5_390, 5_120)),
    ):
        _continued(sessions, text, response, previous, at, usage, session=session)
        if is_restarted:
            sessions.restart()
    assert numbered(sessions) == [(1, 1, None), (1, 2, 1), (1, 3, 2), (1, 3, 2)]
    # The provider had the whole previous prompt, so it dropped this prefix.
    lost = [turn.lost for turn in sessions.turns()[1:]]
    assert lost == [{"new": 208}, {"evicted": 5_120, "new": 280}, {"new": 270}]


def test_the_history_at_the_provider_is_lost_to_changed_instructions(sessions: Sessions) -> None:
    _continued(sessions, LONG_TASK, "resp_1", None, 0, (5_000, 0))
    _continued(sessions, "Continue.", "resp_2", "resp_1", 9, (5_200, 0), instructions="Be verbose. ")
    turn = sessions.last()
    assert (turn.turn, turn.parent, turn.region) == (2, 1, "instructions")
    assert turn.lost["changed"] == pytest.approx(5_000, rel=0.05)


def test_the_instructions_of_the_earlier_request_are_not_in_the_history(sessions: Sessions) -> None:
    """The third request has the instructions of the first one, and the history after those of the second one."""
    for text, previous, instructions, tokens in (
        (LONG_TASK, None, "Be brief. ", 5_000),
        ("Continue.", "resp_1", "Be verbose. ", 5_200),
        ("Continue.", "resp_2", "Be brief. ", 5_300),
    ):
        at = tokens - 5_000
        response = f"resp_{len(sessions.journal.latest(9)) + 1}"
        _continued(sessions, text, response, previous, at / 10, (tokens, 0), instructions=instructions)
    # OpenAI caches 40 blocks of 128 tokens of the second prompt.
    assert sessions.last().lost == {"changed": 5_120, "new": 180}


def test_equal_messages_after_other_responses_share_no_prefix(sessions: Sessions) -> None:
    """The history of the second request was never sent through the proxy."""
    _continued(sessions, LONG_TASK, "resp_1", None, 0, (5_000, 0))
    _continued(sessions, "Continue.", "resp_2", "resp_1", 9, (5_200, 4_992))
    _continued(sessions, "Continue.", "resp_3", "resp_unknown", 18, (9_000, 0))
    turn = sessions.last()
    assert (turn.session, turn.turn) == (3, 1)
    assert turn.lost == {"minimum": pytest.approx(50, abs=15), "new": pytest.approx(8_950, abs=15)}
    _continued(sessions, "Continue.", "resp_4", None, 27, (60, 0))
    assert sessions.last().lost == {"minimum": pytest.approx(50, abs=15), "new": pytest.approx(10, abs=15)}


def test_a_sub_agent_over_the_responses_api_has_the_turn_that_called_it_as_parent(sessions: Sessions) -> None:
    task = "Read all files and report which of them are tests."
    call, result = call_items("function_call", 1)[1:]
    first: list[Json] = [user("Fix the test.")]
    bodies: list[list[Json]] = [first, [user(task)], [*first, {**call, "arguments": f'{{"prompt": "{task}"}}'}, result]]
    for at, items in enumerate(bodies):
        sessions.add(
            request([], 100, 0, at, api="responses", body={"input": items, "instructions": f"You are {len(items)}."})
        )
    assert [(turn.number, turn.session, turn.parent) for turn in sessions.turns()] == [
        (1, 1, None),
        (2, 2, 1),
        (3, 1, 1),
    ]


def test_the_client_names_its_session(sessions: Sessions) -> None:
    def named(messages: list[JsonObject], at: float, name: str) -> None:
        sessions.add(request(messages, 100, 0, at, headers={"x-claude-code-session-id": name}))

    named(FIRST, 0, "a")
    named(FIRST, 1, "b")
    named(SECOND, 2, "a")
    # A sub-agent has its own prompt in the same session.
    named([user("Count the files.")], 3, "a")
    assert [(turn.number, turn.session) for turn in sessions.turns("a")] == [(1, 1), (3, 1), (4, 1)]
    assert [found.name for found in sessions.list()] == ["a", "b"]


@pytest.mark.parametrize(
    "user_id", ["user_1f_account__session_57a121ec-f78c-48c3-a745-e3036a3ecc33", '{"session_id": "57a121ec"}']
)
def test_claude_code_names_its_session_in_the_metadata(sessions: Sessions, user_id: str) -> None:
    body: JsonObject = {"metadata": {"user_id": user_id}}
    sessions.add(request(FIRST, 100, 0, 0, body=body))
    name = sessions.list()[0].name
    assert name is not None
    assert name.startswith("57a121ec")


def test_a_sub_agent_has_the_turn_that_called_it_as_parent(sessions: Sessions) -> None:
    task = "Read all files and report which of them are tests."
    call: Json = {"id": "1", "type": "function", "function": {"name": "task", "arguments": f'{{"prompt": "{task}"}}'}}
    result: JsonObject = {"role": "tool", "tool_call_id": "1", "content": "three"}
    agent = [{**SYSTEM, "content": "You are a sub-agent."}, user(task)]
    sessions.add(
        request(FIRST, 100, 0, 0),
        request(agent, 60, 0, 1),
        request([*agent, assistant("", tool_calls=[call]), user("sure?")], 70, 60, 2),
        request([*FIRST, {"role": "assistant", "content": None, "tool_calls": [call]}, result], 140, 100, 3),
    )
    found = [(turn.number, turn.session, turn.parent) for turn in sessions.turns()]
    assert found == [(1, 1, None), (2, 2, 1), (3, 2, 2), (4, 1, 1)]


def test_the_end_of_a_sub_agent_is_no_pause(sessions: Sessions) -> None:
    task = "Read all files and report which of them are tests."
    call: JsonObject = {"type": "tool_use", "id": "1", "name": "task", "input": {"prompt": task}}
    result: JsonObject = {"type": "tool_result", "tool_use_id": "1", "content": "three"}
    answered = [*FIRST, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    for at, messages in enumerate((FIRST, [user(task)], answered)):
        sessions.add(request(messages, 100 + at, 0, at, api="messages"))
    assert [turn.parent for turn in sessions.turns()] == [None, 1, 1]
    last = sessions.last().time
    # The parent has paused, and does not return.
    assert [pause for pause, *_ in sessions.reader().pauses(last + 3_601)] == [inf, pytest.approx(1)]


def test_a_restart_continues_sessions(sessions: Sessions) -> None:
    sessions.add(request(FIRST, 100, 0, 0), request(SECOND, 120, 100, 1))
    sessions.restart()
    sessions.add(request(THIRD, 150, 120, 2))
    turn = sessions.last()
    assert (turn.session, turn.turn, turn.lost) == (1, 3, {"new": 30})


def test_cached_and_failed_requests_are_no_turns(sessions: Sessions) -> None:
    sessions.add(request(FIRST, 100, 0, 0, status=500), request(FIRST, 100, 0, 1, was_collapsed=True))
    assert sessions.list() == []


def test_the_oldest_contents_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.journal.sessions.session_matching._MAX_CONTENT_BYTES", 10 + 2 * 200)
    monkeypatch.setattr("kvproxy.journal.sessions.session_matching._MAX_CONTENT", 8)
    contents = RegionContents()
    for digest, content in ((b"a", b"1234"), (b"b", b"5678"), (b"a", b"1234"), (b"c", b"90"), (b"d", b"12345678")):
        contents.add(digest, content)
    # A use of `a` made `b` the oldest; `d` takes the place of both.
    assert [contents.content(digest) for digest in (b"a", b"b", b"c", b"d")] == [None, None, 90, 12345678]
    contents.add(b"e", b"123456789")
    assert contents.content(b"e") is None
