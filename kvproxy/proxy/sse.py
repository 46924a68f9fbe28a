"""Server-sent events: reading them, putting a stream together to one object, and replaying an object as a stream."""

import re
from collections.abc import Iterator
from typing import Any

import orjson

DONE = b"[DONE]"
_BOUNDARY = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LAST = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")
_PIECE = re.compile(r"\s*\S+\s*")


def event(data: dict[str, Any] | bytes) -> bytes:
    """One event with JSON or given data."""
    return b"data: " + (data if isinstance(data, bytes) else orjson.dumps(data)) + b"\n\n"


def says_done(chunk: bytes) -> bool:
    """Whether a chunk holds the event that ends a stream; the same letters in an answer's text do not count."""
    return _LAST.search(chunk) is not None


class EventReader:
    """Splits bytes into events, however they were cut on the way."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, chunk: bytes) -> list[bytes]:
        """The data of each event that is complete with this chunk."""
        parts = _BOUNDARY.split(self._rest + chunk)
        self._rest = parts.pop()
        return [data for part in parts if (data := _data(part))]

    @property
    def clean(self) -> bool:
        """Whether nothing is left of an unfinished event."""
        return not self._rest.strip()


def _data(block: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in block.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


class Assembler:
    """Puts the chunks of a stream together to the object that the same request would have got without streaming."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] | None = None
        self._broken = False
        self.done = False

    def push(self, data: bytes) -> None:
        """Take one event's data."""
        if data == DONE:
            self.done = True
            return
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._broken = True
            return
        if not isinstance(chunk, dict) or "error" in chunk:
            self._broken = True
            return
        self._head = {name: value for name, value in chunk.items() if name not in ("choices", "usage")} | self._head
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            self._merge(choice)

    def _merge(self, choice: dict[str, Any]) -> None:
        index = choice.get("index", 0)
        whole = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        if choice.get("finish_reason"):
            whole["finish_reason"] = choice["finish_reason"]
        if "text" in choice:
            whole["text"] = whole.get("text", "") + (choice["text"] or "")
        if "delta" in choice:
            _merge_delta(whole.setdefault("message", {}), choice["delta"] or {})
        if choice.get("logprobs"):
            _merge_logprobs(whole, choice["logprobs"])

    def result(self, usage: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The object, or None unless the stream came to its proper end.

        Args:
            usage: token counts to use where the stream carried none.
        """
        choices = [self._choices[index] for index in sorted(self._choices)]
        if self._broken or not self.done or not choices or any(choice["finish_reason"] is None for choice in choices):
            return None
        kind = str(self._head.get("object", "")).removesuffix(".chunk")
        whole = self._head | {"object": kind, "choices": choices}
        counts = self._usage or usage
        return whole | {"usage": counts} if counts else whole


def _merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls" and value:
            calls = message.setdefault("tool_calls", [])
            for part in value:
                _merge_tool_call(calls, part)
        elif isinstance(value, str) and isinstance(message.get(name), str) and name != "role":
            message[name] += value
        elif value is not None or name not in message:
            message[name] = value


def _merge_tool_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = part.get("index", 0)
    if index == len(calls):
        calls.append({"function": {"name": "", "arguments": ""}})
    call = calls[index]
    if part.get("id") and call.get("id", part["id"]) != part["id"]:
        raise ValueError("two tool calls share one index")
    call.update({name: value for name, value in part.items() if name not in ("index", "function") and value})
    for name, value in (part.get("function") or {}).items():
        call["function"][name] = call["function"].get(name, "") + (value or "")


def _merge_logprobs(whole: dict[str, Any], logprobs: dict[str, Any]) -> None:
    merged = whole.setdefault("logprobs", {})
    for name, values in logprobs.items():
        if isinstance(values, list):
            merged[name] = (merged.get(name) or []) + values
        else:
            merged.setdefault(name, values)


def replay(whole: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
    """An object as the events that a streaming request would have got, up to and with [DONE]."""
    chat = whole.get("object") == "chat.completion"
    head = {name: value for name, value in whole.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk" if chat else whole.get("object")
    extra: dict[str, Any] = {"usage": None} if include_usage else {}
    for choice in whole["choices"]:
        for part in _chat_parts(choice) if chat else _text_parts(choice):
            yield event(head | {"choices": [part]} | extra)
    if include_usage and whole.get("usage"):
        yield event(head | {"choices": [], "usage": whole["usage"]})
    yield event(DONE)


def _chat_parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    index, message = choice["index"], choice["message"]
    rest = {name: value for name, value in message.items() if name not in ("content", "tool_calls")}
    first = rest | ({"content": ""} if isinstance(message.get("content"), str) else {"content": message.get("content")})
    yield {"index": index, "delta": first, "logprobs": choice.get("logprobs"), "finish_reason": None}
    for piece in _PIECE.findall(message.get("content") or "") or (
        [message["content"]] if message.get("content") else []
    ):
        yield {"index": index, "delta": {"content": piece}, "logprobs": None, "finish_reason": None}
    calls = message.get("tool_calls")
    if calls:
        numbered = [{"index": number, **call} for number, call in enumerate(calls)]
        yield {"index": index, "delta": {"tool_calls": numbered}, "logprobs": None, "finish_reason": None}
    yield {"index": index, "delta": {}, "logprobs": None, "finish_reason": choice.get("finish_reason")}


def _text_parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    index, text = choice["index"], choice.get("text") or ""
    pieces = _PIECE.findall(text) or [text]
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        yield {
            "index": index,
            "text": piece,
            "logprobs": choice.get("logprobs") if number == 0 else None,
            "finish_reason": choice.get("finish_reason") if last else None,
        }
