"""Anthropic's Messages by way of chat completions."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson

from kvproxy.errors import InvalidRequest
from kvproxy.proxy.backend import Reply
from kvproxy.proxy.dialects.dialect import text_of
from kvproxy.proxy.sse import event
from kvproxy.proxy.translate.translator import Job, refuse, renamed, texts

_NAMES = {
    "model": "model",
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop",
    "stream": "stream",
}
_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class MessagesTranslator:
    """See `Translator`."""

    def to_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        refuse(body, ("mcp_servers", "container"))
        if (body.get("thinking") or {}).get("type") == "enabled":
            refuse(body, ("thinking",))
        chat = renamed(body, _NAMES)
        system = text_of(body.get("system"))
        messages = [{"role": "system", "content": system}] if system else []
        chat["messages"] = [*messages, *(each for message in body["messages"] for each in _messages(message))]
        tools = [tool for tool in body.get("tools") or () if isinstance(tool, dict)]
        if tools:
            chat["tools"] = [{"type": "function", "function": _function(tool)} for tool in tools]
        return chat

    async def events(self, chunks: AsyncIterator[dict[str, Any]], job: Job, reply: Reply) -> AsyncIterator[bytes]:
        usage = {
            "input_tokens": job.prompt_tokens - job.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": job.cached_tokens,
            "output_tokens": 0,
        }
        message: dict[str, Any] = {
            "id": f"msg_{job.call.request_id}",
            "type": "message",
            "role": "assistant",
            "model": job.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield _event({"type": "message_start", "message": message})
        yield _event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        why = None
        async for text, reason in texts(chunks):
            why = reason or why
            if text:
                delta = {"type": "text_delta", "text": text}
                yield _event({"type": "content_block_delta", "index": 0, "delta": delta})
        yield _event({"type": "content_block_stop", "index": 0})
        end = {"stop_reason": _REASONS[why or "stop"], "stop_sequence": None}
        total = usage | {"output_tokens": (reply.usage or {}).get("completion_tokens", 0)}
        yield _event({"type": "message_delta", "delta": end, "usage": total})
        yield _event({"type": "message_stop"})


def _event(data: dict[str, Any]) -> bytes:
    return event(data, data["type"])


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": tool.get("name"),
        "description": tool.get("description", ""),
        "parameters": tool.get("input_schema", {}),
    }


def _messages(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One message as chat knows it: results of tools are messages of their own there."""
    content = message["content"]
    if isinstance(content, str):
        yield {"role": message["role"], "content": content}
        return
    blocks = [block for block in content if isinstance(block, dict)]
    for block in blocks:
        if block.get("type") == "tool_result":
            result = text_of(block.get("content")) or ""
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    parts = [block for block in blocks if block.get("type") not in ("tool_result", "tool_use", "thinking")]
    text = text_of(parts)
    if text is None:
        raise InvalidRequest(
            "the embedded engine takes text only: send text parts, or use --upstream", param="messages"
        )
    if text or calls:
        yield {"role": message["role"], "content": text} | ({"tool_calls": calls} if calls else {})


def _call(block: dict[str, Any]) -> dict[str, Any]:
    written = orjson.dumps(block.get("input") or {}).decode()
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": block.get("name"), "arguments": written},
    }
