"""OpenAI's Responses by way of chat completions. Nothing is remembered between requests."""

import time
from collections.abc import AsyncIterator
from typing import Any

from kvproxy.errors import InvalidRequest
from kvproxy.proxy.backend import Reply
from kvproxy.proxy.sse import event
from kvproxy.proxy.translate.translator import Job, refuse, renamed, texts

_NAMES = {
    "model": "model",
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "stream": "stream",
}
_TEXT_PARTS = ("input_text", "output_text", "text")


class ResponsesTranslator:
    """See `Translator`."""

    def to_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        refuse(body, ("previous_response_id", "conversation", "background", "prompt"))
        chat = renamed(body, _NAMES)
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        instructions = body.get("instructions")
        before = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
        chat["messages"] = [*before, *map(_message, items)]
        tools = [tool for tool in body.get("tools") or () if isinstance(tool, dict) and tool.get("type") == "function"]
        if tools:
            fields = ("name", "description", "parameters")
            chat["tools"] = [
                {"type": "function", "function": {name: tool[name] for name in fields if name in tool}}
                for tool in tools
            ]
        return chat

    async def events(self, chunks: AsyncIterator[dict[str, Any]], job: Job, reply: Reply) -> AsyncIterator[bytes]:
        numbered = _Numbered()
        whole = _response(job)
        for name in ("response.created", "response.in_progress"):
            yield numbered(name, response=whole)
        item: dict[str, Any] = {
            "id": f"msg_{job.call.request_id}",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        yield numbered("response.output_item.added", output_index=0, item=item)
        yield numbered("response.content_part.added", **at, part=_part(""))
        text, why = "", None
        async for piece, reason in texts(chunks):
            why = reason or why
            if piece:
                text += piece
                yield numbered("response.output_text.delta", **at, delta=piece, logprobs=[])
        yield numbered("response.output_text.done", **at, text=text, logprobs=[])
        yield numbered("response.content_part.done", **at, part=_part(text))
        status = "incomplete" if why == "length" else "completed"
        item |= {"status": status, "content": [_part(text)]}
        yield numbered("response.output_item.done", output_index=0, item=item)
        whole |= {"status": status, "output": [item], "usage": _usage(job, reply)}
        if status == "incomplete":
            whole["incomplete_details"] = {"reason": "max_output_tokens"}
        yield numbered(f"response.{status}", response=whole)


class _Numbered:
    """Writes events with their place in the stream."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, name: str, **data: Any) -> bytes:
        written = event({"type": name, "sequence_number": self._next} | data, name)
        self._next += 1
        return written


def _message(item: dict[str, Any]) -> dict[str, Any]:
    """One item of the input as a chat message."""
    match item.get("type", "message"):
        case "message":
            role = "system" if item.get("role") == "developer" else item.get("role")
            return {"role": role, "content": _text(item.get("content"))}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _text(item.get("output"))}
    raise InvalidRequest(
        f"the embedded engine takes no {item.get('type')!r} items: send messages, or use --upstream", param="input"
    )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") in _TEXT_PARTS for part in content
    ):
        return "".join(str(part.get("text", "")) for part in content)
    raise InvalidRequest("the embedded engine takes text only: send text parts, or use --upstream", param="input")


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response(job: Job) -> dict[str, Any]:
    """The object as it stands before the first word."""
    body = job.call.body
    return {
        "id": f"resp_{job.call.request_id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": job.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": body.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }


def _usage(job: Job, reply: Reply) -> dict[str, Any]:
    generated = (reply.usage or {}).get("completion_tokens", 0)
    return {
        "input_tokens": job.prompt_tokens,
        "input_tokens_details": {"cached_tokens": job.cached_tokens},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": job.prompt_tokens + generated,
    }
