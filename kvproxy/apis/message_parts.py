"""The parts of an assistant's message: reasoning, texts, and tool calls, in any API's format."""

import hashlib
from collections.abc import Iterator, Sequence

from kvproxy.apis.json import Json, JsonMap, JsonObject, field, loads, objects, to_text

_SIZE = 8
_SEPARATOR = "\n\n"
MAX_PARTS = 1_000
"""Most parts of an answer that is recognised when a client sends it back."""
REASONING_BLOCKS = ("thinking", "redacted_thinking", "reasoning")
REASONING_FIELDS = ("reasoning_content", "reasoning")
TOOL_OUTPUTS = ("function_call_output", "custom_tool_call_output")
"""Input items of the Responses API with the result of a tool as text, in their field `output`."""
_OUTPUTS = (*REASONING_BLOCKS, "mcp_list_tools", "mcp_approval_request")


def role_of(turn: Json) -> str | None:
    """Return the role of a message or an input item; None for an item without one, such as the result of a tool call.

    Output items of the Responses API have no role, and are the assistant's: reasoning, and calls of any tool.
    """
    kind, role = field(turn, "type"), field(turn, "role")
    if kind in _OUTPUTS or (isinstance(kind, str) and kind.endswith("_call")):
        return "assistant"
    return role if isinstance(role, str) else None


def message_parts(message: Json) -> Iterator[tuple[str, str]]:
    """Yield the kind (`reasoning`, `text`, or `call`) and the content of each part. Ids and `cache_control` are omitted."""
    for name in REASONING_FIELDS:
        if isinstance(text := field(message, name), str) and text:
            yield "reasoning", text
            break
    content = field(message, "content")
    if isinstance(content, str) and content:
        yield "text", content
    for block in objects(content):
        kind = block.get("type")
        if kind in REASONING_BLOCKS:
            yield "reasoning", to_text(block.get("thinking", block.get("data")))
        elif kind == "tool_use":
            yield "call", f"{block.get('name')} {to_text(block.get('input'))}"
        else:
            yield "text", to_text(block.get("text", block))
    for call in objects(field(message, "tool_calls")):
        function = call.get("function")
        yield "call", f"{field(function, 'name')} {to_text(field(function, 'arguments'))}"


def part_digests(message: Json) -> tuple[tuple[str, bytes], ...]:
    """Return the kind and a digest of each part, to recognise a message that a client sends back."""
    parts = ((kind, content.encode("utf-8", "replace")) for kind, content in message_parts(message))
    return tuple((kind, hashlib.blake2b(content, digest_size=_SIZE).digest()) for kind, content in parts)


def answer_message(response: JsonMap) -> JsonObject | None:
    """Return the assistant's message in a response; None if it has no message or several choices."""
    if response.get("type") == "message":
        return {"role": "assistant", "content": response.get("content")}
    choices = objects(response.get("choices"))
    message = choices[0].get("message") if len(choices) == 1 else None
    return message if isinstance(message, dict) else None


def answer_digests(response: JsonMap) -> tuple[tuple[str, bytes], ...] | None:
    """Return the digests of the parts of an answer; None for several choices, and for more than `MAX_PARTS` parts."""
    message = answer_message(response)
    digests = None if message is None else part_digests(message)
    return None if digests is None or len(digests) > MAX_PARTS else digests


def is_json(text: str) -> bool:
    try:
        loads(text.encode("utf-8", "replace"))
    except ValueError:
        return False
    return True


def parts_with_moved_text(content: str, text: str, kind: str) -> list[Json]:
    """Return a text and a moved text as parts, which engines join to the same prompt as one text with both."""
    return [{"type": kind, "text": content}, {"type": kind, "text": f"{_SEPARATOR}{text}"}]


def with_plain_texts(value: Json) -> Json:
    """Return messages, one message, or a system prompt with texts instead of contents of one text block.

    Anthropic reads both alike.
    """
    if isinstance(value, dict):
        return {**value, "content": with_plain_texts(value["content"])} if "content" in value else value
    if not isinstance(value, list):
        return value
    if len(value) == 1 and isinstance(block := value[0], dict) and block.keys() == {"type", "text"}:
        return block["text"] if block["type"] == "text" else value
    return [with_plain_texts(item) if isinstance(item, dict) else item for item in value]


def without_moved_texts(content: Json, texts: Sequence[str]) -> Json:
    """Return a content without `ApiRequest.moved_texts` at its end; a message and a list of one keep their form."""
    for text in reversed(texts):
        content = _without_end(content, text)
    return content


def _without_end(content: Json, text: str) -> Json:
    if isinstance(content, str):
        return content.removesuffix(f"{_SEPARATOR}{text}")
    if isinstance(content, dict):
        place = "output" if content.get("type") in TOOL_OUTPUTS else "content"
        return {**content, place: _without_end(content[place], text)} if place in content else content
    if not isinstance(content, list) or not content:
        return content
    if field(content[-1], "text") == text:
        return content[:-1]
    if len(content) == 2 and field(content[1], "text") == f"{_SEPARATOR}{text}":
        return field(content[0], "text")
    return [*content[:-1], _without_end(content[-1], text)]
