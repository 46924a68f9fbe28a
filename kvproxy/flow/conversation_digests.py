"""The identity of a conversation, by its messages."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

import orjson

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, dumps, field, loads, objects
from kvproxy.apis.message_parts import REASONING_BLOCKS

MARKER = "cache_control"
"""Field of a breakpoint, which marks the end of a prefix that Anthropic stores."""
_CALL_IDS = ("tool_use_id", "call_id")
_SYSTEM = ("system", "developer")
_SPACE = re.compile(r"\s+")
_THOUGHTS = re.compile(r"(?:<think>)?(.*?)</think>(.*)", re.DOTALL)
"""Of an answer whose backend does not separate its reasoning. Some chat templates have the first tag in the prompt."""


def conversation_scope(request: ApiRequest) -> bytes:
    return dumps([request.tenant, request.api.name, request.model])


def conversation_digests(request: ApiRequest, messages: Sequence[JsonObject] | None = None) -> Iterator[bytes]:
    """Yield a digest of the conversation up to each message.

    It ignores system prompts, and differences that clients cause: reasoning, ids, and the format of tool arguments.

    Args:
        messages: used instead of the request's messages.
    """
    digest = conversation_scope(request)
    for message in messages_of(request.body) if messages is None else messages:
        role = message.get("role")
        if role not in _SYSTEM:
            blocks = _plain_blocks(content_blocks(message.get("content")))
            parts = _answer_parts(message, blocks) if role == "assistant" else map(canonical, blocks)
            digest = digest_of(digest, dumps(role), *parts)
        yield digest


def _answer_parts(message: JsonObject, blocks: list[JsonObject]) -> Iterator[bytes]:
    yield split_thoughts(joined_text(blocks))[1].encode("utf-8", "replace")
    for block in blocks:
        if block.get("type") not in ("text", *REASONING_BLOCKS):
            yield canonical({name: value for name, value in block.items() if name != "id"})
    for call in objects(message.get("tool_calls")):
        function = call.get("function")
        yield canonical({"name": field(function, "name"), "arguments": _parsed(field(function, "arguments"))})


def messages_of(body: JsonObject) -> list[JsonObject]:
    """Return the messages of a conversation. The output items of one response are the content of one message."""
    source = body.get("input")
    if source is None:
        return objects(body.get("messages"))
    items: list[JsonObject] = [{"role": "user", "content": source}] if isinstance(source, str) else objects(source)
    groups: list[tuple[str, list[Json]]] = []
    for item in items:
        kind = str(item.get("type", "message"))
        is_output = kind in REASONING_BLOCKS or kind.endswith("_call")
        role = "assistant" if is_output else str(item.get("role") or "user")
        if role == "assistant" and groups and groups[-1][0] == role:
            groups[-1][1].append(item)
        else:
            groups.append((role, [item]))
    return [{"role": role, "content": content} for role, content in groups]


def _plain_blocks(blocks: Iterable[JsonObject]) -> list[JsonObject]:
    """Return items of the Responses API as blocks of the Messages API, and other blocks as they are."""
    plain: list[JsonObject] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "function_call":
            plain.append({"type": "tool_use", "name": block.get("name"), "input": _parsed(block.get("arguments"))})
        elif kind == "message" or (kind is None and "role" in block):
            parts = content_blocks(block.get("content"))
            plain += ({"type": "text", "text": part["text"]} if "text" in part else part for part in parts)
        else:
            plain.append(block)
    return plain


def joined_text(blocks: Iterable[JsonObject]) -> str:
    """Return the joined text of an answer."""
    return "".join(str(block.get("text") or "") for block in _plain_blocks(blocks) if block.get("type") == "text")


def split_thoughts(text: str) -> tuple[str, str]:
    """Return the reasoning in a text, and the rest of the text, with single spaces."""
    found = _THOUGHTS.match(text.lstrip())
    thoughts, rest = found.groups() if found else ("", text)
    return _SPACE.sub(" ", thoughts).strip(), _SPACE.sub(" ", rest).strip()


def content_blocks(content: Json) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _parsed(arguments: Json) -> Json:
    try:
        return loads(arguments.encode()) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def canonical(value: JsonObject) -> bytes:
    """Serialise a value without call ids and breakpoints, which clients may change."""
    plain = {name: each for name, each in value.items() if name not in (MARKER, *_CALL_IDS)}
    try:
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return dumps(plain)


def digest_of(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
