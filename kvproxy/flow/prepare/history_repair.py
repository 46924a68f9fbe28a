"""Restores earlier answers in a request to the form that the backend sent, so that the backend's prefix cache matches.

Clients send answers back without reasoning, with other white space, or with reformatted tool arguments; some reorder tools.
An answer with any other change, or after a changed message, is not restored.
"""

from collections import OrderedDict
from threading import Lock

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, as_list, as_object, as_text, dumps, field, loads, objects
from kvproxy.apis.message_parts import REASONING_BLOCKS, REASONING_FIELDS, answer_message
from kvproxy.flow.conversation_digests import (
    BREAKPOINT_FIELD,
    canonical_json,
    content_blocks,
    conversation_digests,
    conversation_scope,
    digest_of,
    joined_text,
    messages_of,
    split_reasoning,
)

_MAX_BYTES = 64 * 2**20
_OVERHEAD = 250  # Bytes of memory for each answer, beside its JSON.
_APIS = ("chat", "messages", "responses")
_THINKS = ("enabled", "adaptive")
_CLIENT_FIELDS = ("id", "call_id", BREAKPOINT_FIELD)
_STATEFUL = ("previous_response_id", "conversation", "thread")


class HistoryRepair:
    """Keeps the original answers of recent conversations, and the tool order of their first requests. Thread-safe."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._originals: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()

    def remember(self, request: ApiRequest, response: JsonObject) -> None:
        is_responses_api = response.get("object") == "response"
        content = response.get("output")
        message = {"role": "assistant", "content": content} if is_responses_api else answer_message(response)
        if message is None or not _has_whole_conversation(request):
            return
        *_, digest = conversation_digests(request, [*messages_of(request.body), message])
        self._store(digest, message)

    def repair(self, request: ApiRequest) -> ApiRequest:
        """Restore earlier answers and the order of tools, and add a tag such as `repaired:KIND` for each kind of change."""
        if not _has_whole_conversation(request):
            return request
        repairs: list[str] = []
        body = self._restore_tool_order(request, repairs)
        name = "input" if request.api.name == "responses" else "messages"
        if isinstance(sent := body.get(name), list) and len(objects(sent)) < len(sent):
            return request
        messages = messages_of(body)
        restored: list[Json] = []
        for message, digest in zip(messages, conversation_digests(request, messages), strict=True):
            original = self._load(digest) if message.get("role") == "assistant" else None
            message = message if original is None else _restore_answer(request, message, original, repairs)
            restored += objects(message["content"]) if name == "input" else [message]
        if not repairs:
            return request
        body = {**body, name: body[name] if isinstance(sent, str) else restored}
        return request.with_body(body, *(f"repaired:{kind}" for kind in dict.fromkeys(repairs)))

    def _restore_tool_order(self, request: ApiRequest, repairs: list[str]) -> JsonObject:
        tools = objects(request.body.get("tools"))
        if len(tools) < 2:
            return request.body
        by_digest = {digest_of(canonical_json(tool)): tool for tool in tools}
        key = digest_of(conversation_scope(request), *sorted(by_digest))
        if (first := self._load(key)) is None:
            self._store(key, {"order": [digest.hex() for digest in by_digest]})
            return request.body
        order = [bytes.fromhex(as_text(digest)) for digest in as_list(first["order"])]
        ordered: list[Json] = [by_digest[digest] for digest in order]
        if len(ordered) != len(tools) or ordered == tools:
            return request.body
        repairs.append("tools")
        return {**request.body, "tools": ordered}

    def _store(self, key: bytes, value: JsonObject) -> None:
        data = dumps(value)
        with self._lock:
            if (before := self._originals.pop(key, None)) is not None:
                self._bytes -= len(before) + _OVERHEAD
            self._originals[key] = data
            self._bytes += len(data) + _OVERHEAD
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._originals.popitem(last=False)[1]) + _OVERHEAD

    def _load(self, key: bytes) -> JsonObject | None:
        with self._lock:
            if (data := self._originals.get(key)) is None:
                return None
            self._originals.move_to_end(key)
        return as_object(loads(data))


def _has_whole_conversation(request: ApiRequest) -> bool:
    return request.api.name in _APIS and not any(request.body.get(name) for name in _STATEFUL)


def _restore_answer(request: ApiRequest, message: JsonObject, original: JsonObject, repairs: list[str]) -> JsonObject:
    sent, known = content_blocks(message.get("content")), content_blocks(original.get("content"))
    if (reasoning := _reasoning_in_tags(sent)) and reasoning != _reasoning_in_tags(known):
        return message
    if request.api.name == "chat":
        return _restore_message(message, original, repairs)
    may_think = request.api.name == "responses" or field(request.body.get("thinking"), "type") in _THINKS
    known = [block for block in known if not _is_reasoning(block) or (may_think and _has_reasoning_content(block))]
    return _restore_blocks(message, sent, known, repairs)


def _restore_message(message: JsonObject, original: JsonObject, repairs: list[str]) -> JsonObject:
    restored = dict(message)
    reasoning = {name: original[name] for name in REASONING_FIELDS if original.get(name)}
    if reasoning and not any(message.get(name) for name in REASONING_FIELDS):
        restored |= reasoning
        repairs.append("reasoning")
    content, before = message.get("content"), original.get("content")
    if isinstance(content, str | None) and isinstance(before, str | None) and (content or "") != (before or ""):
        restored["content"] = before
        repairs.append(_kind_of_text_change(message, original))
    calls: list[Json] = []
    for call, known in zip(objects(message.get("tool_calls")), objects(original.get("tool_calls")), strict=False):
        function, arguments = call.get("function"), field(known.get("function"), "arguments")
        if isinstance(function, dict) and isinstance(arguments, str) and function.get("arguments") != arguments:
            call = {**call, "function": {**function, "arguments": arguments}}
            repairs.append("arguments")
        calls.append(call)
    return {**restored, "tool_calls": calls} if calls else restored


def _restore_blocks(
    message: JsonObject, sent_blocks: list[JsonObject], original_blocks: list[JsonObject], repairs: list[str]
) -> JsonObject:
    spoken = [block for block in original_blocks if not _is_reasoning(block)]
    clients = [block for block in sent_blocks if not _is_reasoning(block)]
    if list(map(_block_type, clients)) != list(map(_block_type, spoken)):
        return message
    source, changes = sent_blocks, list[str]()
    if len(spoken) < len(original_blocks) and len(clients) == len(sent_blocks):
        source = original_blocks
        changes.append("reasoning")
    pairs = zip(spoken, clients, strict=True)
    restored: list[Json] = []
    for block in source:
        if _is_reasoning(block):
            restored.append(block)
            continue
        block, client = next(pairs)
        changes += _differences(client, block)
        restored.append({**block, **{name: client[name] for name in _CLIENT_FIELDS if name in client}})
    repairs += changes
    return {**message, "content": restored} if changes else message


def _is_reasoning(block: JsonObject) -> bool:
    return block.get("type") in REASONING_BLOCKS


def _has_reasoning_content(reasoning: JsonObject) -> bool:
    # Some backends only send an id of the reasoning, and may have deleted it.
    return reasoning.get("type") != "reasoning" or bool(reasoning.get("encrypted_content") or reasoning.get("content"))


def _block_type(block: JsonObject) -> Json:
    return block.get("type", "message")


def _differences(client: JsonObject, original: JsonObject) -> list[str]:
    if joined_text([client]) != joined_text([original]):
        return [_kind_of_text_change(client, original)]
    # The order of an object's fields is a part of the model's prompt.
    is_same = all(dumps(client.get(name)) == dumps(original.get(name)) for name in ("input", "arguments"))
    return [] if is_same else ["arguments"]


def _kind_of_text_change(client: JsonObject, original: JsonObject) -> str:
    return "reasoning" if _reasoning_in_tags([original]) and not _reasoning_in_tags([client]) else "text"


def _reasoning_in_tags(blocks: list[JsonObject]) -> str:
    return split_reasoning(joined_text(blocks))[0]
