"""The parts of an assistant's message: reasoning, texts, and tool calls, in any API's format."""

import contextlib
import hashlib
from collections.abc import Iterator

from kvproxy.apis.json import Json, JsonMap, field, loads, objects, to_text

_SIZE = 8
_REASONING = ("thinking", "redacted_thinking")


def message_parts(message: Json) -> Iterator[tuple[str, str]]:
    """Kinds (`reasoning`, `text`, `call`) and contents, without ids and cache markers."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := field(message, name), str) and text:
            yield "reasoning", text
            break
    content = field(message, "content")
    if isinstance(content, str) and content:
        yield "text", content
    for block in objects(content):
        kind = block.get("type")
        if kind in _REASONING:
            yield "reasoning", to_text(block.get("thinking", block.get("data")))
        elif kind == "tool_use":
            yield "call", f"{block.get('name')} {to_text(block.get('input'))}"
        else:
            yield "text", to_text(block.get("text", block))
    for call in objects(field(message, "tool_calls")):
        function = call.get("function")
        yield "call", f"{field(function, 'name')} {to_text(field(function, 'arguments'))}"


def part_digests(message: Json) -> tuple[tuple[str, bytes], ...]:
    """Kinds and digests of the parts of a message."""
    return tuple((kind, _digest(content)) for kind, content in message_parts(message))


def answer_digests(whole: JsonMap) -> tuple[tuple[str, bytes], ...] | None:
    """Like `part_digests`, for the message of a response; None unless it has exactly one."""
    if whole.get("type") == "message":
        return part_digests(dict(whole))
    choices = objects(whole.get("choices"))
    return part_digests(choices[0]["message"]) if len(choices) == 1 and "message" in choices[0] else None


def call_arguments(message: Json) -> Iterator[str]:
    """The texts that an assistant's tool calls pass on, such as the prompt of a sub-agent."""
    for block in objects(field(message, "content")):
        if block.get("type") == "tool_use" and isinstance(inputs := block.get("input"), dict):
            yield from _texts(inputs)
    for call in objects(field(message, "tool_calls")):
        if isinstance(text := field(call.get("function"), "arguments"), str):
            with contextlib.suppress(ValueError):
                yield from _texts(loads(text.encode("utf-8", "replace")))


def _texts(inputs: Json) -> list[str]:
    return [value for value in inputs.values() if isinstance(value, str)] if isinstance(inputs, dict) else []


def _digest(content: str) -> bytes:
    return hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=_SIZE).digest()
