"""Reads agent traces of WEKA, and transcripts: the files in which Claude Code, Codex, and opencode record sessions."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import groupby
from pathlib import Path

from kvproxy.analyse.log_formats.log_format import PROMPT_FIELDS, LoggedRequest
from kvproxy.analyse.log_formats.log_times import logged_time
from kvproxy.analyse.opencode import is_opencode_file, opencode_requests
from kvproxy.analyse.simulate.trace_reader import TraceError, TraceSession, read_text, weka_sessions
from kvproxy.apis import APIS
from kvproxy.apis.json import Json, JsonObject, as_object, field, objects
from kvproxy.apis.message_parts import role_of

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst", "opencode.db")
_HEAD_CHARACTERS = 4_096


@dataclass(frozen=True, slots=True)
class Transcripts:
    """The content of transcripts and agent traces.

    Attributes:
        requests: in order of time.
        damaged: numbers of the lines that are not JSON, by file; the last line may be one that is still being written.
    """

    requests: list[LoggedRequest] = dataclass_field(default_factory=list)
    traces: list[TraceSession] = dataclass_field(default_factory=list)
    damaged: dict[Path, list[int]] = dataclass_field(default_factory=dict)


def is_transcript(path: Path) -> bool:
    """Whether a file is a transcript or an agent trace. Raises TraceError if it cannot be read."""
    head = read_text(path, _HEAD_CHARACTERS)
    first = head.lstrip().partition("\n")[0]
    if '"hash_ids"' in head and '"requests"' in head:
        return True
    return _begins_transcript(first) or is_opencode_file(path, head)


def _begins_transcript(line: str) -> bool:
    """Whether a line, perhaps cut, begins a transcript of Claude Code or Codex. Logs of requests have sessions, too."""
    if '"session_meta"' in line or '"leafUuid"' in line:
        return True
    try:
        entry = as_object(json.loads(line))
    except (ValueError, RecursionError):
        return '"sessionId"' in line and '"parentUuid"' in line
    return "sessionId" in entry and "type" in entry and not any(name in entry for name in PROMPT_FIELDS)


def read_transcripts(
    files: Sequence[Path],
    progress: Callable[[float], None] = lambda share: None,
    on_error: Callable[[Path, TraceError], None] | None = None,
) -> Transcripts:
    """Return the requests of transcripts, and the sessions of agent traces. `progress` receives the share of read files.

    A resumed session of Claude Code begins with a copy of the earlier one; copied requests count once. `on_error` receives each
    unreadable file with its error; without it, the error is raised.
    """
    found = Transcripts()
    answered: set[tuple[str, str]] = set()
    for number, file in enumerate(files):
        progress(number / len(files))
        try:
            _read_transcript(file, found, answered)
        except TraceError as error:
            if on_error is None:
                raise
            on_error(file, error)
    found.requests.sort(key=lambda request: request.time or 0.0)
    return found


def _read_transcript(file: Path, found: Transcripts, answered: set[tuple[str, str]]) -> None:
    if is_opencode_file(file, read_text(file, _HEAD_CHARACTERS)):
        found.requests.extend(opencode_requests(file))
        return
    text = read_text(file)
    if text.lstrip().startswith("{") and '"hash_ids"' in text[:_HEAD_CHARACTERS]:
        found.traces.extend(weka_sessions(file, text))
        return
    lines, damaged = _json_lines(text)
    if damaged:
        found.damaged[file] = damaged
    is_codex = any(line.get("type") == "session_meta" for line in lines[:5])
    found.requests.extend(_codex_requests(lines) if is_codex else _claude_requests(lines, answered))


def _json_lines(text: str) -> tuple[list[JsonObject], list[int]]:
    """Return the JSON objects of the lines, and the numbers of the other lines."""
    lines: list[JsonObject] = []
    damaged: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            lines.append(as_object(json.loads(line)))
        except (ValueError, RecursionError):
            if line.strip():
                damaged.append(number)
    return lines, damaged


def _claude_requests(lines: Sequence[JsonObject], answered: set[tuple[str, str]]) -> list[LoggedRequest]:
    """Return the requests of a transcript, except those in `answered`: ids of responses and requests, which it extends."""
    by_id = {line["uuid"]: line for line in lines if isinstance(line.get("uuid"), str)}
    answers: dict[Json, list[JsonObject]] = {}
    for line in lines:
        if line.get("type") == "assistant" and isinstance(key := field(line.get("message"), "id"), str):
            answers.setdefault(key, []).append(line)
    requests = []
    project = next((str(line["cwd"]) for line in lines if line.get("cwd")), "")
    for id, parts in answers.items():
        identity = (str(id), str(parts[-1].get("requestId", "")))
        if identity in answered:
            continue
        message, before = as_object(parts[-1]["message"]), by_id.get(parts[0].get("parentUuid"))
        usage, end = message.get("usage"), logged_time(parts[-1])
        if not isinstance(usage, dict) or end is None or message.get("model") == "<synthetic>":
            continue
        start = min(end, logged_time(before or parts[0]) or end)
        body: JsonObject = {"model": message.get("model"), "messages": list[Json](_messages_up_to(before, by_id))}
        response: JsonObject = {**message, "type": "message", "content": _contents(parts)}
        headers = {"x-claude-code-session-id": str(parts[-1].get("sessionId", ""))}
        request = LoggedRequest(
            0, APIS["messages"], body, headers, start, response, end - start, project, "Claude Code", is_transcript=True
        )
        requests.append(request)
        answered.add(identity)
    return requests


def _messages_up_to(line: JsonObject | None, by_id: dict[Json, JsonObject]) -> list[JsonObject]:
    path: list[JsonObject] = []
    seen: set[Json] = set()
    while line is not None and line["uuid"] not in seen:
        seen.add(line["uuid"])
        if isinstance(line.get("message"), dict) and line.get("type") in ("user", "assistant"):
            path.append(line)
        line = by_id.get(line.get("parentUuid"))
    messages: list[JsonObject] = []
    for _, same in groupby(reversed(path), key=lambda part: field(part.get("message"), "id") or part["uuid"]):
        parts = list(same)
        role = field(parts[0].get("message"), "role")
        content = field(parts[0].get("message"), "content") if len(parts) == 1 else _contents(parts)
        messages.append({"role": role, "content": content})
    return messages


def _contents(parts: Sequence[JsonObject]) -> list[Json]:
    blocks: list[Json] = []
    for part in parts:
        content = field(part.get("message"), "content")
        blocks += content if isinstance(content, list) else [{"type": "text", "text": content}]
    return blocks


def _codex_requests(lines: Sequence[JsonObject]) -> list[LoggedRequest]:
    items: list[Json] = []
    requests: list[LoggedRequest] = []
    name, model, project, answer, start, reported = "", "", "", None, None, None
    for line in lines:
        payload, kind = line.get("payload"), line.get("type")
        if kind == "session_meta":
            name, project = str(field(payload, "id") or ""), str(field(payload, "cwd") or "")
        elif kind == "turn_context":
            model = str(field(payload, "model") or model)
        elif kind == "compacted":
            items = list(objects(field(payload, "replacement_history")))
        elif kind == "response_item" and isinstance(payload, dict):
            is_output = role_of(payload) == "assistant"
            if is_output and answer is None:
                answer = len(items)
            elif not is_output:
                start = logged_time(line)
            items.append(payload)
        info = field(payload, "info") if field(payload, "type") == "token_count" else None
        usage, total, end = field(info, "last_token_usage"), field(info, "total_token_usage"), logged_time(line)
        # A report is repeated when a limit changes.
        if isinstance(usage, dict) and end is not None and (total is None or total != reported):
            reported = total
            body: JsonObject = {"model": model, "input": items[:answer]}
            details: JsonObject = {"cached_tokens": usage.get("cached_input_tokens", 0)}
            if (written := usage.get("cache_write_input_tokens")) is not None:
                details["cache_write_tokens"] = written
            response: JsonObject = {"usage": {**usage, "input_tokens_details": details}}
            began = min(end, start or end)
            headers = {"session-id": name}
            requests.append(
                LoggedRequest(
                    0,
                    APIS["responses"],
                    body,
                    headers,
                    began,
                    response,
                    end - began,
                    project,
                    "Codex",
                    is_transcript=True,
                )
            )
            answer = None
    return requests
