"""Recognises the conversations of sub-agents: their prompt is an argument of a tool call of their parent."""

import contextlib
import hashlib
from collections.abc import Iterator

from kvproxy.apis.json import Json, field, loads, objects

_MIN_PROMPT = 20


def prompt_digests(first_message: Json) -> Iterator[bytes]:
    """Yield the digest of each text of a conversation's first message that is long enough to be a sub-agent's prompt."""
    content = field(first_message, "content")
    texts = [content] if isinstance(content, str) else [block.get("text") for block in objects(content)]
    for text in texts:
        if isinstance(text, str) and len(text.strip()) >= _MIN_PROMPT:
            yield _digest(text)


def called_digests(message: Json) -> Iterator[bytes]:
    """Yield the digest of each string argument of an assistant's tool calls, such as the prompt of a sub-agent."""
    return map(_digest, call_arguments(message))


def call_arguments(message: Json) -> Iterator[str]:
    """Yield the string arguments of an assistant's tool calls in a message, or in an input item of the Responses API."""
    blocks = objects(field(message, "content"))
    for block in blocks:
        if block.get("type") == "tool_use" and isinstance(inputs := block.get("input"), dict):
            yield from _string_values(inputs)
    functions = [message, *blocks, *(call.get("function") for call in objects(field(message, "tool_calls")))]
    for function in functions:
        if isinstance(text := field(function, "arguments"), str):
            with contextlib.suppress(ValueError):
                yield from _string_values(loads(text.encode("utf-8", "replace")))


def _string_values(inputs: Json) -> list[str]:
    return [value for value in inputs.values() if isinstance(value, str)] if isinstance(inputs, dict) else []


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.strip().encode("utf-8", "replace"), digest_size=16).digest()
