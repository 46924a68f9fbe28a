"""Reads sessions of opencode: its database, the output of `opencode export`, and the files of versions before 1.2."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kvproxy.analyse.log_formats.log_format import LoggedRequest
from kvproxy.analyse.log_formats.log_times import parse_time
from kvproxy.analyse.simulate.trace_reader import TraceError
from kvproxy.apis import APIS
from kvproxy.apis.json import Json, JsonObject, as_object, field, loads, objects
from kvproxy.errors import describe_cause

_TABLES = {"session", "message", "part"}
_CLEARED = "[Old tool result content cleared]"
_INVALID = (KeyError, TypeError, ValueError, OSError)


@dataclass(frozen=True, slots=True)
class _Message:
    info: JsonObject
    parts: Sequence[JsonObject]

    @property
    def is_compaction(self) -> bool:
        return any(part.get("type") == "compaction" for part in self.parts)


def is_opencode_file(path: Path, head: str) -> bool:
    """Return whether a file has sessions of opencode; `head` is the beginning of its text."""
    if head.startswith("SQLite format 3"):
        return _is_database(path)
    beginning = "".join(head.split())[:200]
    if beginning.startswith('{"info":{"id":"ses'):
        return True
    is_session = path.name.startswith("ses_") and path.parent.parent.name == "session"
    return is_session and (_storage(path) / "message" / path.stem).is_dir()


def opencode_requests(path: Path) -> list[LoggedRequest]:
    """Return the requests of all sessions in a file. Raises TraceError.

    opencode records the tokens of each step. It records no system prompt and no tools.
    """
    try:
        return [request for messages in _sessions(path) for request in _requests(messages)]
    except (*_INVALID, sqlite3.Error) as error:
        raise TraceError(f"{path}, line 1: not a session of opencode ({describe_cause(error)})") from None


def _is_database(path: Path) -> bool:
    try:
        with closing(_connect(path)) as database:
            tables = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
            columns = {row[1] for row in database.execute("pragma table_info(part)")}
    except sqlite3.Error:
        return False
    return tables >= _TABLES and {"message_id", "data"} <= columns


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _sessions(path: Path) -> list[list[_Message]]:
    with path.open("rb") as file:
        is_database = file.read(15) == b"SQLite format 3"
    if is_database:
        return _stored_sessions(path)
    document = as_object(loads(path.read_bytes()))
    if "messages" in document:
        messages = objects(document["messages"])
        return [[_Message(as_object(message["info"]), objects(message["parts"])) for message in messages]]
    storage = _storage(path)
    infos = [as_object(loads(file.read_bytes())) for file in (storage / "message" / path.stem).glob("*.json")]
    infos.sort(key=lambda info: (_time(info, "created") or 0.0, str(info["id"])))
    return [[_Message(info, list(_part_files(storage, str(info["id"])))) for info in infos]]


def _storage(session_file: Path) -> Path:
    return session_file.absolute().parents[2]


def _part_files(storage: Path, message: str) -> Iterator[JsonObject]:
    for file in sorted((storage / "part" / message).glob("*.json")):
        yield as_object(loads(file.read_bytes()))


def _stored_sessions(path: Path) -> list[list[_Message]]:
    with closing(_connect(path)) as database:
        messages = database.execute("select id, session_id, data from message order by time_created, id").fetchall()
        parts: dict[str, list[JsonObject]] = {}
        for message, data in database.execute("select message_id, data from part order by id"):
            parts.setdefault(message, []).append(as_object(loads(data.encode())))
    sessions: dict[str, list[_Message]] = {}
    for id, session, data in messages:
        info = {**as_object(loads(data.encode())), "id": id, "sessionID": session}
        sessions.setdefault(session, []).append(_Message(info, parts.get(id, [])))
    return list(sessions.values())


def _requests(messages: Sequence[_Message]) -> Iterator[LoggedRequest]:
    for index, message in enumerate(messages):
        if message.info.get("role") == "assistant":
            yield from _steps(messages[:index], message)


def _steps(earlier: Sequence[_Message], message: _Message) -> Iterator[LoggedRequest]:
    """Yield a request for each step of an answer; versions differ in whether a step is a message of its own."""
    info = message.info
    start, completed = _time(info, "created"), _time(info, "completed")
    done: list[JsonObject] = []
    step: list[JsonObject] = []
    finishes = sum(part.get("type") == "step-finish" for part in message.parts)
    for part in message.parts:
        if part.get("type") != "step-finish":
            step.append(part)
            continue
        finishes -= 1
        ends = [_time(as_object(step_part.get("state") or step_part), "end") for step_part in step]
        end = max((time for time in ends if time is not None), default=completed) if finishes else completed
        yield from _request(earlier, info, done, step, part.get("tokens"), start, end)
        done, step, start = done + step, [], max(start or 0.0, end or 0.0) or None
    if not done and step:
        yield from _request(earlier, info, done, step, info.get("tokens"), start, completed)


def _request(
    earlier: Sequence[_Message],
    info: JsonObject,
    done: list[JsonObject],
    step: list[JsonObject],
    tokens: Json,
    start: float | None,
    end: float | None,
) -> Iterator[LoggedRequest]:
    counts = [field(tokens, "input"), field(field(tokens, "cache"), "read"), field(field(tokens, "cache"), "write")]
    fresh, read, written = (count if isinstance(count, int) else 0 for count in counts)
    if start is None or not fresh + read + written:
        return
    history = _history(earlier, start)
    if done:
        history += _turns("assistant", done, start)
    model = str(info.get("modelID") or field(info.get("model"), "modelID") or "")
    generated = field(tokens, "output")
    output = generated if isinstance(generated, int) else 0
    body: JsonObject = {"model": model, "messages": history}
    session = {"x-session-id": str(info["sessionID"])}
    usage: JsonObject
    response: JsonObject
    if info.get("providerID") == "anthropic" or "claude" in model:
        cached: JsonObject = {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        usage = {"input_tokens": fresh, "output_tokens": output, **cached}
        answer = [block for turn in _turns("assistant", step, start)[:1] for block in objects(field(turn, "content"))]
        response = {"type": "message", "role": "assistant", "content": list[Json](answer), "usage": usage}
        api = APIS["messages"]
    else:
        details: JsonObject = {"cached_tokens": read}
        if written:
            details["cache_write_tokens"] = written
        usage = {"prompt_tokens": fresh + read + written, "completion_tokens": output, "prompt_tokens_details": details}
        response, api = {"usage": usage}, APIS["chat"]
    project = str(field(info.get("path"), "cwd") or "")
    seconds = max(0.0, (end or start) - start)
    yield LoggedRequest(0, api, body, session, start, response, seconds, project, "opencode", is_transcript=True)


def _history(earlier: Sequence[_Message], time: float) -> list[Json]:
    """Return the messages of a prompt at a time: those since the last compaction."""
    begins = 0
    for index, message in enumerate(earlier):
        if message.info.get("summary") is True:
            begins = max((at for at in range(index) if earlier[at].is_compaction), default=index)
    return [
        turn
        for kept_message in earlier[begins:]
        for turn in _turns(str(kept_message.info.get("role", "user")), list(kept_message.parts), time)
    ]


def _turns(role: str, parts: Sequence[JsonObject], time: float) -> list[Json]:
    """Return a message, and the message with the results of its tools."""
    content: list[Json] = []
    results: list[Json] = []
    for part in parts:
        match part.get("type"):
            case "text" if not part.get("ignored"):
                content.append({"type": "text", "text": part.get("text")})
            case "reasoning":
                content.append({"type": "thinking", "thinking": part.get("text")})
            case "compaction":
                content.append({"type": "text", "text": "What did we do so far?"})
            case "file":
                content.append({"type": "document", "source": {"type": "url", "url": part.get("url")}})
            case "tool":
                state = as_object(part.get("state") or {})
                content.append(
                    {
                        "type": "tool_use",
                        "id": part.get("callID"),
                        "name": part.get("tool"),
                        "input": state.get("input"),
                    }
                )
                cleared = _time(state, "compacted")
                output = state.get("output", state.get("error"))
                text = _CLEARED if cleared is not None and cleared <= time else output
                results.append({"type": "tool_result", "tool_use_id": part.get("callID"), "content": text})
    messages: list[Json] = [{"role": role, "content": content}] if content else []
    return messages + ([{"role": "user", "content": results}] if results else [])


def _time(value: JsonObject, name: str) -> float | None:
    return parse_time(field(value.get("time"), name))
