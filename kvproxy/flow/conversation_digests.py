"""The identity of a conversation, by its messages."""

import hashlib
import re
from collections.abc import Iterator, Sequence

import orjson

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, dumps, field, loads, objects
from kvproxy.apis.message_parts import REASONING_BLOCKS

SLOW_BYTES = 64 * 1024
"""Larger requests are hashed in a thread."""
MARKER = "cache_control"
_SYSTEM = ("system", "developer")
_SPACE = re.compile(r"\s+")


def conversation_scope(request: ApiRequest) -> bytes:
    return dumps([request.tenant, request.api.name, request.model])


def conversation_digests(request: ApiRequest, messages: Sequence[JsonObject] | None = None) -> Iterator[bytes]:
    """Yield the digest of the conversation up to each message; by default the request's messages.

    The digests ignore instructions, and the form in which a client returns an answer.
    """
    digest = conversation_scope(request)
    for message in objects(request.body.get("messages")) if messages is None else messages:
        role = message.get("role")
        if role not in _SYSTEM:
            blocks = content_blocks(message.get("content"))
            parts = _answer_parts(message, blocks) if role == "assistant" else map(canonical, blocks)
            digest = digest_of(digest, dumps(role), *parts)
        yield digest


def _answer_parts(message: JsonObject, blocks: list[JsonObject]) -> Iterator[bytes]:
    text = "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
    yield _SPACE.sub(" ", text).strip().encode("utf-8", "replace")
    for block in blocks:
        if block.get("type") not in ("text", *REASONING_BLOCKS):
            yield canonical({name: value for name, value in block.items() if name != "id"})
    for call in objects(message.get("tool_calls")):
        function = call.get("function")
        yield canonical({"name": field(function, "name"), "arguments": _parsed(field(function, "arguments"))})


def content_blocks(content: Json) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _parsed(arguments: Json) -> Json:
    try:
        return loads(arguments.encode()) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def canonical(value: JsonObject) -> bytes:
    """Serialise a value without call ids and breakpoints, which clients may change."""
    plain = {name: each for name, each in value.items() if name not in (MARKER, "tool_use_id")}
    try:
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return dumps(plain)


def digest_of(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
