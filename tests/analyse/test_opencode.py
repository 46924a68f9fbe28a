"""Sessions of opencode in each of its three layouts, in the shape that version 1.18 writes."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvproxy.analyse.log_files import find_log_files
from kvproxy.analyse.session_report import report_sessions
from kvproxy.analyse.simulate.trace_reader import TraceError
from kvproxy.analyse.transcripts import read_transcripts
from kvproxy.analyse.workload_reader import read_workload
from kvproxy.settings.journal import JournalSettings
from tests.commands.run import kvproxy

SESSION = "ses_1"
START = 1_795_908_926_000


def message(number: int, role: str, parts: list[dict[str, Any]], **info: Any) -> dict[str, Any]:
    """`number` is the time in seconds after the start."""
    id = f"msg_{number:03}"
    own = {"id": id, "sessionID": SESSION, "role": role, "time": {"created": START + 1000 * number}} | info
    ids = {"messageID": id, "sessionID": SESSION}
    return {"info": own, "parts": [{"id": f"prt_{number:03}{at}", **part, **ids} for at, part in enumerate(parts)]}


def tokens(fresh: int, read: int, written: int, output: int = 5) -> dict[str, Any]:
    return {"input": fresh, "output": output, "reasoning": 0, "cache": {"read": read, "write": written}}


def answer(number: int, counts: dict[str, Any], *parts: dict[str, Any], **info: Any) -> dict[str, Any]:
    finish = {"type": "step-finish", "reason": "stop", "tokens": counts}
    time = {"created": START + 1000 * number, "completed": START + 1000 * number + 500}
    known = {"modelID": "claude-sonnet-5-5", "providerID": "anthropic", "tokens": counts, "time": time} | info
    return message(number, "assistant", [{"type": "step-start"}, *parts, finish], **known)


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def tool(output: str, **time: int) -> dict[str, Any]:
    state = {
        "status": "completed",
        "input": {"filePath": "a"},
        "output": output,
        "time": {"start": START + 1100, "end": START + 1400} | time,
    }
    return {"type": "tool", "tool": "read", "callID": f"call {output}", "state": state}


CONVERSATION = [
    message(0, "user", [text("Read it.")]),
    answer(1, tokens(0, 0, 7647), {"type": "reasoning", "text": "Hm."}, tool("marzipan")),
    answer(3, tokens(0, 7647, 119), text("It is marzipan.")),
    message(20, "user", [text("Once more.")]),
    answer(21, tokens(0, 7766, 64), text("Marzipan.")),
    answer(22, tokens(0, 0, 0), error={"name": "MessageAbortedError"}),
]


def as_export(folder: Path, messages: list[dict[str, Any]]) -> Path:
    (file := folder / "export.json").write_text(
        json.dumps({"info": {"id": SESSION, "title": "t"}, "messages": messages}, indent=2)
    )
    return file


def as_database(folder: Path, messages: list[dict[str, Any]]) -> Path:
    database = sqlite3.connect(file := folder / "opencode.db")
    database.execute("create table session (id text primary key)")
    times = "time_created integer, time_updated integer, data text"
    database.execute(f"create table message (id text primary key, session_id text, {times})")
    database.execute(f"create table part (id text primary key, message_id text, session_id text, {times})")
    for each in messages:
        info = dict(each["info"])
        time, id = info["time"]["created"], info.pop("id")
        database.execute("insert into message values (?, ?, ?, ?, ?)", (id, SESSION, time, time, json.dumps(info)))
        for part in each["parts"]:
            row = (part["id"], id, SESSION, time, time, json.dumps(part))
            database.execute("insert into part values (?, ?, ?, ?, ?, ?)", row)
    database.commit()
    database.close()
    return file


def as_files(folder: Path, messages: list[dict[str, Any]]) -> Path:
    storage = folder / "storage"
    file = storage / "session/global" / f"{SESSION}.json"
    files = {file: {"id": SESSION, "title": "t", "time": {"created": START}}}
    for each in messages:
        id = each["info"]["id"]
        files[storage / "message" / SESSION / f"{id}.json"] = each["info"]
        files |= {storage / "part" / id / f"{part['id']}.json": part for part in each["parts"]}
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return file


LAYOUTS = [as_export, as_database, as_files]
Layout = Callable[[Path, list[dict[str, Any]]], Path]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_has_the_tokens_that_the_provider_reported(tmp_path: Path, layout: Layout) -> None:
    """By hand: 3 steps with 7,647, 7,766, and 7,830 input tokens, of which 0, 7,647, and 7,766 were read."""
    layout(tmp_path, CONVERSATION)
    files = find_log_files({tmp_path: tmp_path}).transcripts
    requests = read_transcripts(files).requests
    assert [len(each.body["messages"]) for each in requests] == [1, 3, 5]  # type: ignore[arg-type]
    assert [each.seconds for each in requests] == [0.5] * 3
    report = report_sessions(requests, [], JournalSettings())
    (session,) = report.sessions
    assert (session.turns, session.prompt_tokens, session.reused_tokens) == (3, 23_243, 15_413)
    assert session.name == SESSION
    assert [row.result for row in report.ledger.rows if row.tokens] == ["reused", "new"]


def test_a_message_with_several_steps_has_a_request_for_each(tmp_path: Path) -> None:
    first, second = CONVERSATION[1]["parts"], CONVERSATION[2]["parts"]
    joined = answer(1, tokens(0, 7766, 64))
    joined["parts"] = [*first, *second]
    requests = read_transcripts([as_export(tmp_path, [CONVERSATION[0], joined])]).requests
    assert [len(each.body["messages"]) for each in requests] == [1, 3]  # type: ignore[arg-type]


def test_tokens_of_other_providers_are_parts_of_the_prompt(tmp_path: Path) -> None:
    counts = tokens(100, 7424, 0)
    done = answer(1, counts, text("a"), modelID="gpt-5.1", providerID="openai")
    requests = read_transcripts([as_export(tmp_path, [message(0, "user", [text("q")]), done])]).requests
    (session,) = report_sessions(requests, [], JournalSettings()).sessions
    assert (session.prompt_tokens, session.reused_tokens) == (7524, 7424)


def test_a_prompt_has_the_messages_since_the_compaction_and_no_cleared_results(tmp_path: Path) -> None:
    messages = [
        *CONVERSATION[:3],
        message(30, "user", [{"type": "compaction", "auto": True}]),
        answer(31, tokens(0, 7766, 20), text("We read it."), summary=True),
        message(40, "user", [text("Go on.")]),
        answer(41, tokens(0, 0, 7700), tool("old", compacted=START + 50_000)),
        answer(60, tokens(0, 7700, 40), text("done")),
    ]
    requests = read_transcripts([as_export(tmp_path, messages)]).requests
    contents = [json.dumps(each.body["messages"]) for each in requests]
    assert ["marzipan" in each for each in contents] == [False, True, True, False, False]
    assert "We read it." in contents[3]
    assert ("Old tool result content cleared" in contents[4], '"old"' in contents[4]) == (True, False)


def test_the_commands_read_a_database(tmp_path: Path) -> None:
    file = as_database(tmp_path, CONVERSATION)
    assert "3 requests, 23,243 input tokens, 66.3% reused" in kvproxy("lint", file, "--data", tmp_path).stdout
    assert len(read_workload(file).arrivals) == 3


def test_a_damaged_session_is_refused(tmp_path: Path) -> None:
    file = as_export(tmp_path, [{"info": 3, "parts": []}])
    with pytest.raises(TraceError, match="not a session of opencode"):
        read_transcripts([file])
