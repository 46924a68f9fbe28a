"""Sessions of Claude Code, Codex, and agent traces."""

import gzip
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kvproxy.analyse.log_files import find_log_files
from kvproxy.analyse.request_log import read_log
from kvproxy.analyse.session_report import SessionReport, report_sessions
from kvproxy.analyse.transcripts import is_transcript, read_transcripts
from kvproxy.commands.analyse.session_report import print_costs, print_losses
from kvproxy.settings.journal import JournalSettings, PriceSettings
from tests.commands.run import kvproxy

START = 1_790_000_000
SETTINGS = JournalSettings(prices={"claude*": PriceSettings(input=3, cached=0.3, write_5m=3.75, write_1h=6)})
TASK = "Read all files and report which of them are tests."


def at(seconds: float) -> str:
    return datetime.fromtimestamp(START + seconds, UTC).isoformat().replace("+00:00", "Z")


class Claude:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = [{"type": "summary", "summary": "s", "leafUuid": "u9"}]
        self.parent: str | None = None

    def user(self, seconds: float, content: Any, **more: Any) -> None:
        self._add(seconds, "user", {"role": "user", "content": content}, **more)

    def answer(self, seconds: float, new: int, read: int, written: int, *blocks: dict[str, Any], **more: Any) -> None:
        """Each block has a line of its own, with the same id and usage."""
        usage = {"input_tokens": new, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        usage["output_tokens"] = 1
        answer = {"role": "assistant", "id": f"msg{seconds}", "model": "claude-opus", "usage": usage}
        for block in blocks or ({"type": "text", "text": f"answer at {seconds}"},):
            self._add(seconds, "assistant", answer | {"content": [block]}, **more)

    def _add(self, seconds: float, kind: str, message: dict[str, Any], **more: Any) -> None:
        line = {"uuid": f"u{len(self.lines)}", "parentUuid": self.parent, "sessionId": "5e55", "timestamp": at(seconds)}
        self.parent = line["uuid"]
        self.lines.append(line | {"type": kind, "message": message} | more)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The last line is still being written.
        path.write_text("\n".join(map(json.dumps, self.lines)) + '\n{"type": "assi')


def conversation() -> Claude:
    log = Claude()
    log.user(0, "Fix the tests.")
    call = {"type": "tool_use", "id": "t1", "name": "Task", "input": {"prompt": TASK}}
    log.answer(4, 10, 0, 12_000, {"type": "thinking", "thinking": "hm"}, call)
    log.user(20, [{"type": "tool_result", "tool_use_id": "t1", "content": "three files"}])
    log.answer(24, 10, 12_000, 900)
    log.user(1_024, "And now?")
    log.answer(1_030, 10, 0, 13_200)
    return log


def report(path: Path, settings: JournalSettings = SETTINGS) -> SessionReport:
    found = read_transcripts(find_log_files({path: path}).transcripts)
    return report_sessions(found.requests, found.traces, settings)


@pytest.mark.parametrize(
    ("away", "last", "changed"), [(1, 1_000, 1_000), (3, 1_000, 3_000), (1, 6_000, 1_000), (0, 1_000, 0)]
)
def test_a_return_to_the_first_model_loses_only_what_the_other_model_read(
    tmp_path: Path, away: int, last: int, changed: int
) -> None:
    """Five turns of one model, then `away` of another; the next turn of the first one has `last` new tokens."""
    log, hidden = Claude(), 17_900
    for turn in range(1, 7 + away):
        log.user(100 * turn, f"w{turn:04} " * (last if turn == 6 + away else 900))
        is_away, is_last = 5 < turn <= 5 + away, turn == 6 + away
        total = hidden + 1_000 * turn + (last - 1_000 if is_last else 0)
        begins_model = turn == 1 or (turn == 6 and is_away)
        read = 0 if begins_model else hidden + 1_000 * (5 if is_last else turn - 1)
        log.answer(100 * turn + 4, 0, read, total - read, {"type": "text", "text": f"x{turn:04} " * 100})
        log.lines[-1]["message"]["model"] = "claude-opus-4-5" if is_away else "claude-sonnet-4-5"
    log.write(tmp_path / "a.jsonl")
    lost = report(tmp_path).sessions[0].lost
    # The other model's first turn loses the whole prompt of the turn before.
    of_switch = hidden + 5_000 if away else 0
    assert lost.get("changed", 0) == pytest.approx(of_switch + changed, abs=100)


def test_claude_code_lost_its_prefix_in_a_pause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conversation().write(tmp_path / "projects" / "-work" / "5e55.jsonl")
    found = report(tmp_path)
    (session,) = found.sessions
    assert (session.name, session.turns, session.longest_pause) == ("5e55", 3, pytest.approx(1_000))
    assert session.prompt_tokens == 12_010 + 12_910 + 13_210
    assert session.lost == {"new": 12_010 + 910 + 310, "expired": 12_900}
    assert sum(session.lost.values()) + session.reused_tokens == session.prompt_tokens
    # Of 12,900 expired tokens, each was written for 3.75 instead of read for 0.3.
    assert found.ledger.currency == "USD"
    expired = next(row for row in found.ledger.rows if row.result == "expired")
    assert expired.cost == pytest.approx(12_900 * 3.45 / 1e6, rel=0.01)
    assert found.pause_costs['breakpoints = "auto", keep_warm_tokens'] <= found.pause_costs['breakpoints = "5m"']
    print_costs(found)
    shown = " ".join(capsys.readouterr().out.split())
    assert "it is not tested with Anthropic's API (docs/agent-caching.md)" in shown
    # The cost of the policy can be computed again.
    sent = found.keep_warm
    assert sent is not None
    assert sent.requests > 0
    assert sent.cost == pytest.approx(sent.tokens * 0.3 / 1e6)


@pytest.mark.parametrize(
    ("hours", "head", "lost"),
    [
        # After a pause, the system prompt that both sessions have expired.
        (5, 18_100, {"expired": pytest.approx(18_080, abs=20), "new": pytest.approx(20, abs=20)}),
        # Another agent has another system prompt, and so may another session.
        (5, 9_000, {"new": 8_986, "minimum": 18}),
        (0.01, 18_100, {"new": 18_086, "minimum": 18}),
    ],
)
def test_the_first_message_of_a_session_changes_no_hidden_system_prompt(
    tmp_path: Path, hours: float, head: int, lost: dict[str, int]
) -> None:
    for name, word, seconds, written in (("a", "tests", 0.0, 18_100), ("b", "files", hours * 3_600, head)):
        log = Claude()
        log.user(seconds, f"Please read the folder, name the most important of the {word}, and report what they do.")
        log.answer(seconds + 4, 4, 0, written)
        for line in log.lines:
            line["sessionId"] = name
        log.write(tmp_path / f"{name}.jsonl")
    found = {session.name: session.lost for session in report(tmp_path).sessions}
    assert found == {"a": {"new": 18_104}, "b": lost}


def test_a_compacted_conversation_stays_in_its_session(tmp_path: Path) -> None:
    log = conversation()
    log.parent = None
    log.user(1_040, "This session continues from an earlier one: " + "we fixed tests. " * 9, isCompactSummary=True)
    log.answer(1_050, 10, 9_000, 700)
    log.write(tmp_path / "5e55.jsonl")
    (session,) = report(tmp_path / "5e55.jsonl").sessions
    assert (session.turns, session.lost["new"]) == (4, 12_010 + 910 + 310 + 710)


def test_a_sub_agent_is_in_the_session(tmp_path: Path) -> None:
    conversation().write(tmp_path / "5e55.jsonl")
    agent = Claude()
    agent.user(5, TASK, isSidechain=True)
    agent.answer(8, 10, 0, 3_000, isSidechain=True)
    agent.write(tmp_path / "5e55" / "subagents" / "agent-1.jsonl")
    (session,) = report(tmp_path).sessions
    assert session.turns == 4


def test_the_price_of_pauses_follows_each_branch(tmp_path: Path) -> None:
    """A turn after a sub-agent, and a resumed session, find what their own branch wrote for one hour."""
    main, agent = Claude(), Claude()
    main.user(0, "Fix the tests.")
    main.answer(4, 10, 0, 12_000, {"type": "tool_use", "id": "t1", "name": "Task", "input": {"prompt": TASK}})
    agent.user(5, TASK, isSidechain=True)
    agent.answer(8, 10, 0, 3_000, isSidechain=True)
    agent.write(tmp_path / "5e55" / "subagents" / "agent-1.jsonl")
    main.user(1_000, [{"type": "tool_result", "tool_use_id": "t1", "content": "3 tests"}])
    main.answer(1_004, 10, 0, 12_900)
    main.write(tmp_path / "5e55.jsonl")
    main.user(2_000, "Resume.")
    main.answer(2_004, 10, 0, 13_200)
    for line in main.lines:
        line["sessionId"] = "77aa"
    main.write(tmp_path / "77aa.jsonl")
    costs = report(tmp_path).pause_costs
    five_minutes = 3.75 * (12_010 + 3_010 + 12_910 + 13_210)
    new, read = 12_010 + 3_010 + 900 + 300, 12_010 + 12_910
    assert costs['breakpoints = "5m"'] == pytest.approx(five_minutes / 1e6, rel=0.01)
    assert costs['breakpoints = "1h"'] == pytest.approx((6 * new + 0.3 * read) / 1e6, rel=0.01)


def test_a_log_that_begins_within_a_session_begins_with_a_read(tmp_path: Path) -> None:
    log = Claude()
    log.user(0, "And now?")
    log.answer(4, 10, 50_000, 900)
    log.user(20, "Go on.")
    log.answer(24, 10, 50_900, 700)
    log.write(tmp_path / "5e55.jsonl")
    found = report(tmp_path)
    assert found.pause_costs['breakpoints = "5m"'] == pytest.approx(found.cost, rel=0.01)
    assert found.cost < 3.75 * 15_000 / 1e6


def test_the_price_of_pauses_follows_the_length_of_each_prompt(tmp_path: Path) -> None:
    """Without a pause, five-minute writes cost as much as the transcript, in which a part of the prompts is long."""
    log = Claude()
    for number in range(3):
        log.user(9.0 * number, f"Step {number}.")
        log.answer(9.0 * number + 4, 4, 150_000 * number, 150_000)
    for line in log.lines[2::2]:
        line["message"]["model"] = "claude-sonnet-4-5"
    log.write(tmp_path / "5e55.jsonl")
    found = report(tmp_path, JournalSettings())
    assert found.pause_costs['breakpoints = "5m"'] == pytest.approx(found.cost, rel=1e-3)
    assert found.cost > 1.5 * (450_000 * 3.75 + 450_000 * 0.3) / 1e6


def test_codex_reports_reused_tokens(tmp_path: Path) -> None:
    def line(seconds: float, kind: str, **payload: Any) -> dict[str, Any]:
        return {"timestamp": at(seconds), "type": kind, "payload": payload}

    def tokens(seconds: float, input: int, cached: int, total: int) -> dict[str, Any]:
        usage = {"input_tokens": input, "cached_input_tokens": cached, "output_tokens": 50}
        info = {"last_token_usage": usage, "total_token_usage": {"input_tokens": total}}
        return line(seconds, "event_msg", type="token_count", info=info)

    def message(seconds: float, role: str, text: str) -> dict[str, Any]:
        return line(seconds, "response_item", type="message", role=role, content=[{"type": "input_text", "text": text}])

    lines = [
        line(0, "session_meta", id="0199", cwd="/work"),
        message(0, "user", "<environment_context>"),
        message(1, "user", "Fix the tests."),
        line(1, "turn_context", model="gpt-5-codex"),
        line(5, "response_item", type="function_call", name="shell", arguments="{}", call_id="c1"),
        tokens(5, 8_000, 0, 8_000),
        line(9, "response_item", type="function_call_output", call_id="c1", output="ok"),
        message(12, "assistant", "Done."),
        tokens(12, 8_400, 7_936, 16_400),
        # A limit changed.
        tokens(13, 8_400, 7_936, 16_400),
    ]
    file = tmp_path / "rollout-2026.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    found = report(file, JournalSettings())
    (session,) = found.sessions
    # OpenAI's models have no five-minute or one-hour writes.
    assert found.pause_costs == {}
    assert (session.name, session.turns, session.reused_tokens) == ("0199", 2, 7_936)
    assert session.lost == {"new": 8_464}


def trace(path: Path) -> None:
    rows = [
        {"t": 0.0, "model": "claude-x", "in": 640, "out": 9, "hash_ids": list(range(10)), "api_time": 1.0},
        {"t": 11.0, "model": "claude-x", "in": 768, "out": 9, "hash_ids": list(range(12)), "api_time": 1.0},
        {"t": 1_000.0, "model": "claude-x", "in": 800, "out": 9, "hash_ids": [*range(11), 99, 100], "api_time": 1.0},
        {"type": "subagent", "requests": [{"t": 3.0, "model": "claude-x", "in": 100, "out": 1, "hash_ids": [7, 8]}]},
    ]
    path.write_bytes(gzip.compress(json.dumps({"id": "t1", "block_size": 64, "requests": rows}).encode()))


def test_a_trace_without_reports_loses_prefixes_to_pauses(tmp_path: Path) -> None:
    trace(tmp_path / "t1.json.gz")
    found = report(tmp_path)
    assert {session.name: session.lost for session in found.sessions} == {
        "t1": {"new": 640 + 128 + 96, "expired": 704},
        "t1 agent 1": {"new": 100},
    }
    assert found.repeated == (pytest.approx((640 / 768 + 704 / 800) / 2),) * 2


def test_changes_that_save_nearly_nothing_are_not_advised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace(tmp_path / "t1.json.gz")
    found = report(tmp_path)
    assert ([advice.cause for advice in found.advice], found.minor_changes) == (["expired"], 0)
    print_losses(replace(found, minor_changes=1), 1)
    shown = capsys.readouterr().out
    assert "1 change with less than 0.1% of the cost of the input not shown" in shown
    assert "input with which an earlier request to the model began, without the first turns of sessions" in shown


@pytest.mark.parametrize(
    ("arrival", "lost"), [(300.0, {"new": 640 + 640 + 128}), (301.0, {"new": 640 + 640 + 128, "expired": 640})]
)
def test_a_trace_continues_any_earlier_prompt_within_its_lifetime(
    tmp_path: Path, arrival: float, lost: dict[str, int]
) -> None:
    """Another conversation stands between two turns. A lifetime begins with the arrival of a request, not with its end."""
    prompts = [(0.0, list(range(10))), (200.0, list(range(50, 60))), (arrival, list(range(12)))]
    rows = [
        {"t": at, "model": "claude-x", "in": 64 * len(ids), "out": 9, "hash_ids": ids, "api_time": 150.0}
        for at, ids in prompts
    ]
    (tmp_path / "t1.json").write_text(json.dumps({"id": "t1", "block_size": 64, "requests": rows}))
    (session,) = report(tmp_path).sessions
    assert session.lost == lost


def test_a_log_with_usage_has_sessions() -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "What is a block?"}]
    lines = []
    for turn in range(3):
        cached = {"cached_tokens": 0 if turn < 2 else 2_176}
        usage = {"prompt_tokens": 2_000 + turn * 200, "prompt_tokens_details": cached}
        body = {"model": "m", "messages": list(messages)}
        lines.append(json.dumps({"body": body, "time": START + 10 * turn, "response": {"usage": usage}}))
        messages += [{"role": "assistant", "content": f"answer {turn}"}, {"role": "user", "content": f"more {turn}"}]
    requests = read_log(Path("log"), "\n".join(lines), "m").requests
    found = report_sessions(requests, [], JournalSettings())
    (session,) = found.sessions
    assert session.lost == {"evicted": 1_920, "new": 2_000 + 80 + 200 + 224}
    assert found.is_relative


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"type": "user", "parentUuid": None, "sessionId": "s", "message": {"role": "user", "content": "q"}}, True),
        ({"type": "queue-operation", "operation": "enqueue", "sessionId": "s", "content": "q"}, True),
        ({"type": "summary", "summary": "s", "leafUuid": "l"}, True),
        # Langfuse's API, and a log of requests.
        ({"type": "GENERATION", "traceId": "t", "sessionId": "s", "input": [{"role": "user", "content": "q"}]}, False),
        ({"model": "m", "sessionId": "s", "messages": [{"role": "user", "content": "q"}]}, False),
    ],
)
def test_a_session_alone_makes_no_transcript(tmp_path: Path, line: dict[str, object], expected: bool) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps(line) + "\n")
    assert is_transcript(file) == expected


def test_lines_that_are_not_json_are_named(tmp_path: Path) -> None:
    conversation().write(tmp_path / "5e55.jsonl")
    for options in (("lint", tmp_path), ("estimate", tmp_path), ("estimate", tmp_path, "--by", "day")):
        done = kvproxy(*options, "--data", tmp_path)
        assert f"not JSON, and left out: line 9 of {tmp_path / '5e55.jsonl'}\n" in done.stderr


def test_a_transcript_may_come_from_stdin(tmp_path: Path) -> None:
    conversation().write(tmp_path / "5e55.jsonl")
    content = (tmp_path / "5e55.jsonl").read_bytes()
    for stdin in (content, gzip.compress(content)):
        for options in (("estimate", "-", "--by", "model"), ("estimate", "-"), ("lint", "-")):
            piped = kvproxy(*options, "--json", "--data", tmp_path, stdin=stdin)
            named = [tmp_path / "5e55.jsonl" if option == "-" else option for option in options]
            assert json.loads(piped.stdout) == json.loads(kvproxy(*named, "--json", "--data", tmp_path).stdout)


def test_the_commands_report_transcripts(tmp_path: Path) -> None:
    conversation().write(tmp_path / "5e55.jsonl")
    trace(tmp_path / "t1.json.gz")
    losses = kvproxy("lint", str(tmp_path), "--data", str(tmp_path)).stdout
    assert "3 sessions in 2 files, 7 requests" in losses
    assert "expired\t13604" in losses
    _, lost = losses.split("Turns that lost the most:\n")
    head, *rows = [line.split("\t") for line in lost.splitlines()]
    first = dict(zip(head, rows[0], strict=False))
    assert (first["session"], first["turn"], first["lost_to"]) == ("5e55", "3", "expired")
    assert datetime.fromisoformat(first["time"]).timestamp() == START + 1_024
    costs = kvproxy("estimate", str(tmp_path), "--data", str(tmp_path)).stdout
    rows = dict(re.findall(r"^([^\t]+)\t[\d.]+\t([\d.]+)$", costs, re.MULTILINE))
    assert rows["as logged"] == "1"
    assert float(rows["nothing lost to expired"]) < 1 < float(rows["without a cache"]) < 10
    assert 'breakpoints = "auto", keep_warm_tokens' in costs


@pytest.mark.parametrize("by", [(), ("--by", "day")])
def test_options_without_effect_on_transcripts_are_an_error(tmp_path: Path, by: tuple[str, ...]) -> None:
    conversation().write(tmp_path / "5e55.jsonl")
    options = "--tokenizer demo --block-size 32 --blocks 9 --prefill-rate 9 --decode-rate 9 --draws 1".split()
    if not by:
        options += ["--plot", "a.svg", "--report", "a.html"]
    done = kvproxy("estimate", tmp_path, *options, *by, "--data", tmp_path)
    names = ", ".join(name for name in options if name.startswith("--"))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{names} cannot be used with transcripts or --sessions" in " ".join(done.stderr.split())
    refused = kvproxy("lint", tmp_path, "--tokenizer", "demo", "--data", tmp_path)
    assert (refused.returncode, "--tokenizer cannot be used" in refused.stderr) == (2, True)


def test_a_note_says_that_a_changed_system_prompt_looks_evicted(tmp_path: Path) -> None:
    log = Claude()
    for seconds, written in ((0, 12_000), (20, 12_300)):
        log.user(seconds, "Fix the tests.")
        log.answer(seconds + 4, 10, 0, written)
    log.write(tmp_path / "5e55.jsonl")
    (session,) = report(tmp_path).sessions
    assert session.lost["evicted"] > 11_000
    done = kvproxy("lint", tmp_path, "--data", tmp_path)
    assert "transcripts of Claude Code and opencode lack system prompt and tools" in " ".join(done.stderr.split())


def test_lint_checks_the_reuse_of_transcripts(tmp_path: Path) -> None:
    conversation().write(tmp_path / "5e55.jsonl")
    reuse = json.loads(kvproxy("lint", tmp_path, "--json").stdout)["reuse"]
    assert 0.1 < reuse < 0.9
    codes = [kvproxy("lint", tmp_path, "--min-reuse", least).returncode for least in (0, reuse - 0.01, reuse + 0.01, 1)]
    assert codes == [0, 0, 1, 1]
    refused = kvproxy("lint", tmp_path, "--edits", tmp_path / "edits.toml")
    assert (refused.returncode, "--edits needs a log" in refused.stderr) == (2, True)


def test_a_model_without_a_price_does_not_remove_the_money_of_the_others(tmp_path: Path) -> None:
    conversation().write(tmp_path / "known.jsonl")
    known = report(tmp_path)
    text = (tmp_path / "known.jsonl").read_text()
    (tmp_path / "other.jsonl").write_text(
        text.replace("claude-opus", "acme").replace("msg", "acme").replace("5e55", "6e55")
    )
    both = report(tmp_path)
    assert (both.is_relative, both.unpriced, both.ledger.currency) == (False, 3, "USD")
    assert (both.cost, both.uncached, both.pause_costs) == (known.cost, known.uncached, known.pause_costs)
    costs = {row.result: row.cost for row in both.ledger.rows}
    assert costs == {row.result: row.cost for row in known.ledger.rows}
    assert [(session.models, session.cost is None) for session in both.sessions] == [
        (["claude-opus"], False),
        (["acme"], True),
    ]
    (tmp_path / "kvproxy.toml").write_text('[journal.prices."claude*"]\ninput = 3\noutput = 15\n')
    for command in ("estimate", "lint"):
        done = kvproxy(command, tmp_path, "--data", tmp_path)
        assert "not in the money: 3 requests of models without a price" in done.stderr


@pytest.mark.parametrize(
    "settings", ["", '[journal.prices."*"]\ninput = 100\n', '[journal.prices."claude-*"]\ninput = 100\n']
)
def test_the_price_of_the_command_line_wins(tmp_path: Path, settings: str) -> None:
    (tmp_path / "kvproxy.toml").write_text(settings)
    conversation().write(tmp_path / "5e55.jsonl")

    def cost(price: str) -> float:
        found = kvproxy("estimate", str(tmp_path), "--price", price, "--data", str(tmp_path))
        assert "has no price" not in found.stdout + found.stderr
        (paid,) = re.findall(r"^as logged\t([\d.]+)\t", found.stdout, re.MULTILINE)
        return float(paid)

    assert cost("6,30,0.6") == pytest.approx(2 * cost("3,15,0.3"), rel=1e-3)
    # Missing prices of writes have the provider's ratios.
    assert cost("3,15,0.3") == cost("3,15,0.3,3.75,6") > cost("3,15,0.3,3,3")
