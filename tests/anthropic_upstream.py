"""An upstream that enforces Anthropic's rules for breakpoints, and bills like it; with streams."""

import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

MINIMUM = 1_024
_LOOKBACK = 20
_LIFETIMES = {"5m": 300.0, "1h": 3_600.0}


@dataclass(slots=True)
class AnthropicUpstream:
    """Answers each request with the contents of `answers`, then with a constant text.

    Attributes:
        separate_lifetimes: a prefix that was stored for five minutes is not found with one hour, and the reverse.
        reports_cache: the usage has the tokens that were read and written.
        bodies: received requests.
        usages: their usage.
        refused: messages of errors.
    """

    answers: list[list[dict[str, Any]]] = field(default_factory=list)
    clock: Callable[[], float] = time.time
    separate_lifetimes: bool = False
    reports_cache: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _stored: dict[str, tuple[float, float]] = field(default_factory=dict)

    async def answer(self, request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse({"object": "list", "data": []}, 200 if request.url.path == "/v1/models" else 404)
        body = json.loads(await request.body())
        self.bodies.append(body)
        blocks = list(_blocks(body))
        if (error := _broken_rule(blocks)) is not None:
            self.refused.append(error)
            return JSONResponse({"type": "error", "error": {"type": "invalid_request_error", "message": error}}, 400)
        usage = self._usage(body["model"], blocks) | {"output_tokens": 5}
        if not self.reports_cache:
            usage = {
                "input_tokens": sum(usage[name] for name in usage if name.endswith("input_tokens")),
                "output_tokens": 5,
            }
        self.usages.append(usage)
        content = self.answers.pop(0) if self.answers else [{"type": "text", "text": "Yes."}]
        stop = "tool_use" if content[-1]["type"] == "tool_use" else "end_turn"
        head = {"id": f"msg_{len(self.bodies)}", "type": "message", "role": "assistant", "model": body["model"]}
        whole = {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}
        if not body.get("stream"):
            return JSONResponse(whole)
        return StreamingResponse(_events(whole), media_type="text/event-stream")

    def evict(self) -> None:
        """Drop all stored prefixes."""
        self._stored.clear()

    def _usage(self, model: str, blocks: list[tuple[dict[str, Any], str]]) -> dict[str, Any]:
        now, digest, read, written = self.clock(), hashlib.sha256(model.encode()), 0, {"5m": 0, "1h": 0}
        sizes = [max(1, len(text) // 4) for _, text in blocks]
        prefixes = []
        for block, text in blocks:
            digest.update(text.encode() + b"\0")
            if self.separate_lifetimes:
                digest.update(str(block.get("cache_control", {}).get("ttl")).encode())
            prefixes.append(digest.hexdigest())
        marks = [place for place, (block, _) in enumerate(blocks) if "cache_control" in block]
        for mark in marks:
            for place in range(mark, max(-1, mark - _LOOKBACK - 1), -1):
                until, lifetime = self._stored.get(prefixes[place], (0.0, 0.0))
                if until > now:
                    self._stored[prefixes[place]] = now + lifetime, lifetime
                    read = max(read, sum(sizes[: place + 1]))
                    break
        end = read
        for mark in marks:
            size, name = sum(sizes[: mark + 1]), blocks[mark][0]["cache_control"].get("ttl", "5m")
            if size >= MINIMUM and size > end:
                self._stored[prefixes[mark]] = now + _LIFETIMES[name], _LIFETIMES[name]
                written[name] += size - end
                end = size
        return {
            "input_tokens": sum(sizes) - end,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": sum(written.values()),
            "cache_creation": {f"ephemeral_{name}_input_tokens": count for name, count in written.items()},
        }


def _broken_rule(blocks: list[tuple[dict[str, Any], str]]) -> str | None:
    marked = [block for block, _ in blocks if "cache_control" in block]
    if len(marked) > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {len(marked)}."
    lifetimes = [block["cache_control"].get("ttl", "5m") for block in marked]
    if "5m" in lifetimes and "1h" in lifetimes[lifetimes.index("5m") :]:
        return "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block."
    for block in marked:
        if block.get("type") in ("thinking", "redacted_thinking"):
            return "cache_control cannot be set for thinking blocks"
        if block.get("type") == "text" and not block["text"]:
            return "cache_control cannot be set for empty text blocks"
        if block.get("defer_loading"):
            return "cache_control cannot be set for tools with defer_loading"
    return None


def _blocks(body: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The prompt's blocks in their order, and the texts that the model reads."""
    for tool in body.get("tools", []):
        yield tool, _text(tool)
    for block in _list(body.get("system", [])):
        yield block, _text(block)
    for message in body["messages"]:
        for block in _list(message["content"]):
            yield block, f"{message['role']} {_text(block)}"


def _list(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(block: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in block.items() if name != "cache_control"})


async def _events(whole: dict[str, Any]) -> AsyncIterator[str]:
    def event(data: dict[str, Any]) -> str:
        return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"

    yield event({"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}})
    for index, block in enumerate(whole["content"]):
        kind = block["type"]
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}[kind]
        yield event({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
        deltas: list[dict[str, Any]] = {
            "text": lambda block: [{"type": "text_delta", "text": block["text"]}],
            "thinking": lambda block: [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ],
            "tool_use": lambda block: [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}],
        }[kind](block)
        for delta in deltas:
            yield event({"type": "content_block_delta", "index": index, "delta": delta})
        yield event({"type": "content_block_stop", "index": index})
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event({"type": "message_delta", "delta": end, "usage": whole["usage"]})
    yield event({"type": "message_stop"})
