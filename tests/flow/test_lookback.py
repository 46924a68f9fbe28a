"""Anthropic finds a cached prefix only within 20 positions up to a breakpoint."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvproxy.journal.reader import JournalReader
from kvproxy.journal.sessions.advice import advise
from kvproxy.journal.sessions.session_reader import SessionReader, Turn
from tests.anthropic_upstream import AnthropicUpstream
from tests.flow.test_keep_warm import LONG, proxied
from tests.polling import until

MARK = {"cache_control": {"type": "ephemeral"}}


def _text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def _calls(count: int) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": f"t{place}", "name": "read", "input": {}} for place in range(count)]


def _results(count: int) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": f"t{place}", "content": f"{place}"} for place in range(count)]


PARALLEL = _calls(12), _results(12)
MIXED = [block for call in _calls(12) for block in (_text(f"I read {call['id']}."), call)], _results(12)
NOTES = [_text("I read.")], [_text(f"Note {place}") for place in range(20)]


def _second_turn(data: Path, answer: list[Any], reply: list[Any], *, system_mark: bool = False, **rule: Any) -> Turn:
    """Return the second turn of a client that marks the end of its requests, and perhaps its system prompt."""
    with proxied(data, AnthropicUpstream(), **rule) as (client, services):
        system = [_text(LONG, **(MARK if system_mark else {}))]
        *begin, end = reply
        first = {"role": "user", "content": [_text("Read these files. " * 300)]}
        later = [{"role": "assistant", "content": answer}, {"role": "user", "content": [*begin, end | MARK]}]
        sent = {"role": "user", "content": [first["content"][0] | MARK]}
        for number, messages in enumerate(([sent], [first, *later])):
            body = {"model": "claude-sonnet-5", "max_tokens": 9, "system": system, "messages": messages}
            assert client.post("/v1/messages", json=body).status_code == 200
            until(lambda number=number: len(services.journal.latest(9)) == number + 1)
    with closing(JournalReader(data / "journal.db")) as reader:
        turn: Turn = SessionReader(reader, {}).all_turns()[1]
    return turn


def test_parallel_tool_calls_do_not_hide_the_prefix(tmp_path: Path) -> None:
    assert set(_second_turn(tmp_path, *PARALLEL).lost) == {"new"}


@pytest.mark.parametrize("system_mark", [False, True])
@pytest.mark.parametrize("turn", [MIXED, NOTES])
def test_a_prefix_that_no_breakpoint_reaches_lacks_one(tmp_path: Path, turn: Any, *, system_mark: bool) -> None:
    lost = _second_turn(tmp_path, *turn, system_mark=system_mark)
    assert bool(lost.reused_tokens) == system_mark
    assert lost.lost["unmarked"] > 1_000
    assert set(lost.lost) == {"unmarked", "new"}
    assert lost.place_of("unmarked")[0] == "cache_control within 20 blocks after the prefix"
    (row,) = advise([lost], {}, "USD").rows
    assert "end of the previous request" in row.remedy


@pytest.mark.parametrize("turn", [MIXED, NOTES])
def test_breakpoints_of_the_proxy_reach_the_prefix(tmp_path: Path, turn: Any) -> None:
    assert set(_second_turn(tmp_path, *turn, breakpoints="auto").lost) == {"new"}
