"""Digests that identify a conversation by its messages."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kvproxy.apis.api_request import ApiRequest, in_thread_if_large
from kvproxy.apis.json import Json, JsonObject, dumps, field, loads, objects
from kvproxy.apis.key_fields import MARKER_FIELDS, reads_item_id
from kvproxy.apis.message_parts import REASONING_BLOCKS, role_of, without_moved_texts

BREAKPOINT_FIELD = "cache_control"
"""Field of a content block that sets a cache breakpoint of Anthropic, see `breakpoints.py`."""
_CALL_IDS = ("tool_use_id", "call_id")
SYSTEM_ROLES = ("system", "developer")
_SPACE = re.compile(r"\s+")
_THINK_TAGS = re.compile(r"(?:<think>)?(.*?)</think>(.*)", re.DOTALL)
"""Splits reasoning from an answer. The opening tag may be missing, because some chat templates put it into the prompt."""


def conversation_scope(request: ApiRequest) -> bytes:
    """Return tenant, API, and model as bytes, with which each digest of a conversation begins."""
    return dumps([request.tenant, request.api.name, request.model])


def conversation_digests(request: ApiRequest, messages: Sequence[JsonObject] | None = None) -> Iterator[bytes]:
    """Yield a digest for each message, of the conversation from its start up to this message.

    Clients change system prompts, reasoning, ids, and the format of tool arguments between turns; the digests ignore them.
    They ignore texts that edits moved to the last message, too, since the next request has them elsewhere.

    Args:
        messages: the conversation; by default, the messages of the request.
    """
    digest = conversation_scope(request)
    for message in messages_of(request.body) if messages is None else messages:
        role = message.get("role")
        if role not in SYSTEM_ROLES:
            content = message.get("content")
            if role != "assistant" and request.moved_texts:
                content = without_moved_texts(content, request.moved_texts)
            blocks = _plain_blocks(content_blocks(content))
            parts = _answer_parts(message, blocks) if role == "assistant" else map(canonical_json, blocks)
            digest = digest_of(digest, dumps(role), *parts)
        yield digest


async def with_conversation(request: ApiRequest) -> ApiRequest:
    """Return the request with the digests of its conversation, computed once."""
    if request.conversation:
        return request
    digests = await in_thread_if_large(len(request.raw), lambda: list(conversation_digests(request)))
    # Two requests of a client may have one id.
    return replace(request, conversation=digests)


def _answer_parts(message: JsonObject, blocks: list[JsonObject]) -> Iterator[bytes]:
    yield split_reasoning(joined_text(blocks))[1].encode("utf-8", "replace")
    for block in blocks:
        if block.get("type") not in ("text", *REASONING_BLOCKS):
            yield canonical_json({name: value for name, value in block.items() if name != "id"})
    for call in objects(message.get("tool_calls")):
        function = call.get("function")
        yield canonical_json(
            {"name": field(function, "name"), "arguments": _parse_arguments(field(function, "arguments"))}
        )


def messages_of(body: JsonObject) -> list[JsonObject]:
    """Return a request's messages. Input items of the Responses API are converted to messages.

    Consecutive output items, such as reasoning and tool calls, become one assistant message.
    """
    source = body.get("input")
    if source is None:
        return objects(body.get("messages"))
    items: list[JsonObject] = [{"role": "user", "content": source}] if isinstance(source, str) else objects(source)
    groups: list[tuple[str, list[Json]]] = []
    for item in items:
        role = role_of(item) or "user"
        if role == "assistant" and groups and groups[-1][0] == role:
            groups[-1][1].append(item)
        else:
            groups.append((role, [item]))
    return [{"role": role, "content": content} for role, content in groups]


def _plain_blocks(blocks: Iterable[JsonObject]) -> list[JsonObject]:
    plain: list[JsonObject] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "function_call":
            plain.append(
                {"type": "tool_use", "name": block.get("name"), "input": _parse_arguments(block.get("arguments"))}
            )
        elif kind == "message" or (kind is None and "role" in block):
            parts = content_blocks(block.get("content"))
            plain += ({"type": "text", "text": part["text"]} if "text" in part else part for part in parts)
        else:
            plain.append(block)
    return plain


def joined_text(blocks: Iterable[JsonObject]) -> str:
    return "".join(str(block.get("text") or "") for block in _plain_blocks(blocks) if block.get("type") == "text")


def split_reasoning(text: str) -> tuple[str, str]:
    """Return the reasoning in `<think>` tags, and the rest of the text, both with normalized white space."""
    match = _THINK_TAGS.match(text.lstrip())
    reasoning, rest = match.groups() if match else ("", text)
    return _SPACE.sub(" ", reasoning).strip(), _SPACE.sub(" ", rest).strip()


def content_blocks(content: Json) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _parse_arguments(arguments: Json) -> Json:
    try:
        return loads(arguments.encode()) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def canonical_json(value: JsonObject) -> bytes:
    """Serialise a content block without call ids and breakpoints, which clients change between turns."""
    plain = {name: inner for name, inner in value.items() if name not in (*MARKER_FIELDS, *_CALL_IDS)}
    if "id" in plain and str(plain.get("type", "")).endswith("_output") and not reads_item_id(plain):
        del plain["id"]
    return dumps(plain, sort_keys=True)


def digest_of(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
