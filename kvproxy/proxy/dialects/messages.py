"""Anthropic's Messages."""

from collections.abc import Iterator
from typing import Any

import orjson

from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.proxy.dialects.dialect import Question, ask, counts, shown, text_of
from kvproxy.proxy.dialects.fields import check_common, check_integer, check_texts
from kvproxy.proxy.documents import loads
from kvproxy.proxy.sse import event, pieces

# A request with any of these is answered from an equal one only, never from a similar one.
_EXACT_ONLY = ("tools", "tool_choice", "mcp_servers", "container", "output_format", "output_config")
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 503: "overloaded_error"}
# What a block's deltas add to: the delta's field, and the block's.
_TEXTS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
}


class Messages:
    """`/v1/messages`."""

    name = "messages"
    path = "/v1/messages"
    irrelevant = frozenset(("stream", "metadata", "service_tier"))

    def check(self, body: dict[str, Any]) -> None:
        check_common(body)
        if body.get("max_tokens") is None:
            raise InvalidRequest("max_tokens is required: the most tokens to generate", param="max_tokens")
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise InvalidRequest("messages is required: a list of objects with role and content", param="messages")
        check_texts(body, "stop_sequences")
        check_integer(body, "top_k", least=0)

    def cacheable(self, body: dict[str, Any]) -> bool:
        # A container keeps files from one request to the next.
        return not body.get("container")

    def question(self, body: dict[str, Any]) -> Question | None:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            return None
        texts = [text_of(message["content"]) for message in messages]
        similar = None not in texts and not any(body.get(name) for name in _EXACT_ONLY)
        return ask(body, "messages", messages[-1], texts[-1], similar)

    def shown(self, body: dict[str, Any]) -> str:
        messages = body.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else messages
        return shown(last.get("content") if isinstance(last, dict) else last)

    def complete(self, whole: dict[str, Any]) -> bool:
        # A turn that is paused is to be continued, so it is no answer yet.
        ended = isinstance(whole.get("stop_reason"), str) and whole["stop_reason"] != "pause_turn"
        return whole.get("type") == "message" and isinstance(whole.get("content"), list) and ended

    def said(self, whole: dict[str, Any]) -> str | None:
        return text_of(whole["content"])

    def usage(self, whole: dict[str, Any]) -> tuple[int, int]:
        return counts(whole, "input_tokens", "output_tokens")

    def assembler(self) -> "_Assembler":
        return _Assembler()

    def replay(self, whole: dict[str, Any], body: dict[str, Any]) -> Iterator[bytes]:
        usage = whole.get("usage") or {}
        begun: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage | {"output_tokens": 0},
        }
        yield _event({"type": "message_start", "message": whole | begun})
        for index, block in enumerate(whole["content"]):
            empty, deltas = _taken_apart(block)
            yield _event({"type": "content_block_start", "index": index, "content_block": empty})
            for delta in deltas:
                yield _event({"type": "content_block_delta", "index": index, "delta": delta})
            yield _event({"type": "content_block_stop", "index": index})
        end = {name: whole.get(name) for name in ("stop_reason", "stop_sequence")}
        yield _event({"type": "message_delta", "delta": end, "usage": usage})
        yield _event({"type": "message_stop"})

    def error(self, error: KvproxyError) -> dict[str, Any]:
        kind = _ERRORS.get(error.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}}


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str | list)
    )


def _event(data: dict[str, Any]) -> bytes:
    return event(data, data["type"])


def _taken_apart(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and the deltas that fill it; kinds that have none begin whole."""
    kind = block.get("type")
    if kind == "text":
        cited = [{"type": "citations_delta", "citation": each} for each in block.get("citations") or ()]
        texts = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        return block | {"text": ""} | ({"citations": []} if cited else {}), [*cited, *texts]
    if kind == "thinking":
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        signed = [{"type": "signature_delta", "signature": block["signature"]}] if block.get("signature") else []
        return block | {"thinking": "", "signature": ""}, [*thoughts, *signed]
    if kind in ("tool_use", "server_tool_use", "mcp_tool_use") and block.get("input"):
        written = orjson.dumps(block["input"]).decode()
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": written}]
    return block, []


class _Assembler:
    """See `Assembler`."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._inputs: dict[int, str] = {}
        self.done = False

    def push(self, data: bytes) -> None:
        part = loads(data)
        match part["type"]:
            case "message_start":
                self._message = dict(part["message"])
            case "content_block_start":
                if part["index"] != len(self._blocks):
                    raise ValueError("a content block comes before the one ahead of it")
                self._blocks.append(dict(part["content_block"]))
            case "content_block_delta":
                self._add(part["index"], part["delta"])
            case "message_delta":
                self._message |= part["delta"]
                given = {name: value for name, value in (part.get("usage") or {}).items() if value is not None}
                self._message["usage"] = (self._message.get("usage") or {}) | given
            case "message_stop":
                self.done = True
            case "error":
                raise ValueError("the stream ended in an error")

    def _add(self, index: int, delta: dict[str, Any]) -> None:
        if not 0 <= index < len(self._blocks):
            raise ValueError("a delta of no content block")
        block, kind = self._blocks[index], delta["type"]
        if kind in _TEXTS:
            source, target = _TEXTS[kind]
            block[target] = (block.get(target) or "") + delta[source]
        elif kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        else:
            # Unknown parts pass to the client, but what they mean for the whole cannot be known.
            raise ValueError(f"an unknown kind of delta: {kind}")

    def result(self, usage: dict[str, Any] | None = None) -> dict[str, Any] | None:
        for index, text in self._inputs.items():
            self._blocks[index]["input"] = loads(text) if text.strip() else {}
        self._inputs.clear()
        whole = self._message | {"content": self._blocks}
        return whole if self.done and Messages().complete(whole) else None
