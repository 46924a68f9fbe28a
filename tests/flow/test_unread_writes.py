"""Sessions whose system prompt changes in each request: nothing that they write is read."""

import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.exchange import Exchange, ResponseFacts
from kvproxy.flow.conversation_digests import with_conversation
from kvproxy.flow.prepare import unread_writes
from kvproxy.flow.prepare.unread_writes import UnreadWrites
from kvproxy.http.services import Services
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.settings.rules import RuleSettings
from tests.anthropic_upstream import AnthropicUpstream
from tests.flow.test_keep_warm import LONG, Clock, ask, proxied
from tests.polling import until
from tests.requests import api_request

TOOLS = [{"name": "read", "description": LONG, "input_schema": {"type": "object"}}]


def _run(data: Path, *systems: Any, breakpoints: str = "auto", **more: Any) -> AnthropicUpstream:
    """Send a session with one turn for each system prompt."""
    clock = Clock()
    upstream = AnthropicUpstream(clock=clock)
    with proxied(data, upstream, 10, 900, clock=clock, breakpoints=breakpoints) as (client, services):
        texts = ["one"]
        for number, system in enumerate(systems):
            before = _keys(services)
            ask(client, *texts, system=system, **more)
            until(lambda before=before: _keys(services) not in ([], before))
            clock.now += 20
            texts += ["Yes.", f"{number}"]
    assert not upstream.refused
    return upstream


def _keys(services: Services) -> list[bytes]:
    return list(services.path.unread_writes._sessions)


def _writes(upstream: AnthropicUpstream) -> list[bool]:
    return [usage["cache_creation_input_tokens"] > 0 for usage in upstream.usages]


@pytest.mark.parametrize("breakpoints", ["auto", "5m", "1h"])
def test_the_third_changed_prompt_of_a_session_is_not_written(
    tmp_path: Path, breakpoints: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="kvproxy"):
        upstream = _run(tmp_path, *(f"Now: {day}. {LONG}" for day in range(6)), breakpoints=breakpoints)
    assert _writes(upstream) == [True, True, False, False, False, False]
    if breakpoints == "auto":
        assert "1h" not in str(upstream.bodies)
    (warning,) = [record.message for record in caplog.records if "kvproxy lint --edits" in record.message]
    assert "rule claude: system[0] changes in each request" in warning


def test_a_prompt_that_stays_equal_again_is_written_and_read(tmp_path: Path) -> None:
    upstream = _run(tmp_path, *(f"Now: {day}. {LONG}" for day in (1, 2, 3, 4, 4, 4)))
    assert _writes(upstream) == [True, True, False, False, True, True]
    assert upstream.usages[-1]["cache_read_input_tokens"] > 0


def test_tools_before_the_change_are_still_read(tmp_path: Path) -> None:
    upstream = _run(tmp_path, *(f"Now: {day}. {LONG}" for day in range(5)), tools=TOOLS)
    read = [usage["cache_read_input_tokens"] for usage in upstream.usages]
    assert read[0] == 0
    assert len(set(read[1:])) == 1
    assert read[1] > 0
    assert _writes(upstream) == [True, True, False, False, False]


def test_a_prompt_without_breakpoints_after_its_change_is_lost_to_the_change(tmp_path: Path) -> None:
    _run(tmp_path, *(f"Now: {day}. {LONG}" for day in range(5)), tools=TOOLS)
    with closing(JournalReader(tmp_path / "journal.db")) as reader:
        later = SessionReader(reader, {}).all_turns()[1:]
    assert [turn.region for turn in later] == ["system"] * 4
    assert all(turn.lost["changed"] > 2_400 and turn.lost["new"] < 100 for turn in later)


def test_two_alternating_system_prompts_are_written_and_read(tmp_path: Path) -> None:
    upstream = _run(tmp_path, *(f"Mode {number % 2}. {LONG}" for number in range(6)), breakpoints="5m")
    assert all(usage["cache_read_input_tokens"] > 0 for usage in upstream.usages[2:])


async def test_a_changed_block_that_the_provider_does_not_count_changes_nothing() -> None:
    """Anthropic omits the billing header of Claude Code from the prompt."""
    writes = UnreadWrites()
    for number in range(5):
        system = [{"type": "text", "text": text} for text in (f"x-anthropic-billing-header: cch={number}", LONG)]
        messages = [{"role": "user", "content": text} for text in map(str, range(number + 1))]
        made = api_request({"model": "claude-test", "system": system, "messages": messages}, "messages")
        rule = RuleSettings(name="claude", breakpoints="auto")
        request = await with_conversation(replace(made, control=replace(made.control, rule=rule)))
        unread = writes.find(request)
        assert unread is None or (number == 1 and not unread.is_worth_no_write)
        exchange = Exchange("messages", "id", "public", request=request, status=200)
        exchange.facts = ResponseFacts(prefix=PrefixReuse(2_000, 1_990 if number else 0))
        writes.on_finish(exchange)


async def test_sessions_are_remembered_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_writes, "MAX_SESSIONS", 10)
    writes = UnreadWrites()
    rule = RuleSettings(name="claude", breakpoints="auto")
    for number in range(30):
        made = api_request({"model": "m", "messages": [{"role": "user", "content": f"{number}"}]}, "messages")
        request = await with_conversation(replace(made, control=replace(made.control, rule=rule)))
        exchange = Exchange("messages", "id", "public", request=request, status=200)
        exchange.facts = ResponseFacts(prefix=PrefixReuse(2_000, 0))
        writes.on_finish(exchange)
    assert len(writes._sessions) == 10
