"""Restores earlier answers in a conversation to the form that the backend sent, so that its cached prefix fits again.

Clients send answers back without their reasoning, with other white space, or with tool arguments that were serialised again, and
some change the order of tools. An answer is restored only if the conversation before it is the same, and if it differs from the
original in nothing else.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Lock

import orjson

from kvproxy.apis.json import Json, JsonObject, as_list, as_object, as_text, dumps, field, loads, objects
from kvproxy.apis.request import ApiRequest

_MAX_BYTES = 64 * 2**20
_APIS = ("chat", "messages")
_SYSTEM = ("system", "developer")
_REASONING_FIELDS = ("reasoning_content", "reasoning")
_REASONING_BLOCKS = ("thinking", "redacted_thinking")
_MARKER = "cache_control"
_SPACE = re.compile(r"\s+")


class HistoryRepair:
    """The original answers of recent conversations, and the first order of their tools. Thread-safe."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._originals: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()

    def remember(self, request: ApiRequest, whole: JsonObject) -> None:
        """Keep the answer to a request, by its conversation."""
        message = _answer(whole)
        if message is None or request.api.name not in _APIS:
            return
        *_, digest = _digests(request, [*objects(request.body.get("messages")), message])
        self._keep(digest, message)

    def repaired(self, request: ApiRequest) -> ApiRequest:
        """Restore the tools and the answers; the request itself if nothing changes. Tags name the kinds of changes."""
        if request.api.name not in _APIS:
            return request
        kinds: list[str] = []
        body = self._with_tools(request, kinds)
        messages = objects(body.get("messages"))
        if messages != body.get("messages"):
            return request
        restored: list[Json] = []
        for message, digest in zip(messages, _digests(request, messages), strict=True):
            original = self._find(digest) if message.get("role") == "assistant" else None
            restored.append(message if original is None else _restored(request, message, original, kinds))
        if not kinds:
            return request
        body = {**body, "messages": restored}
        tags = (*request.control.tags, *(f"repaired:{kind}" for kind in dict.fromkeys(kinds)))
        return replace(request, body=body, raw=dumps(body), control=replace(request.control, tags=tags))

    def _with_tools(self, request: ApiRequest, kinds: list[str]) -> JsonObject:
        tools = objects(request.body.get("tools"))
        if len(tools) < 2:
            return request.body
        by_digest = {_digest(_canonical(tool)): tool for tool in tools}
        key = _digest(_scope(request), *sorted(by_digest))
        if (first := self._find(key)) is None:
            self._keep(key, {"order": [digest.hex() for digest in by_digest]})
            return request.body
        order = [bytes.fromhex(as_text(digest)) for digest in as_list(first["order"])]
        ordered: list[Json] = [by_digest[digest] for digest in order]
        if len(ordered) != len(tools) or ordered == tools:
            return request.body
        kinds.append("tools")
        return {**request.body, "tools": ordered}

    def _keep(self, key: bytes, value: JsonObject) -> None:
        data = dumps(value)
        with self._lock:
            self._bytes += len(data) - len(self._originals.pop(key, b""))
            self._originals[key] = data
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._originals.popitem(last=False)[1])

    def _find(self, key: bytes) -> JsonObject | None:
        with self._lock:
            if (data := self._originals.get(key)) is None:
                return None
            self._originals.move_to_end(key)
        return as_object(loads(data))


def _answer(whole: JsonObject) -> JsonObject | None:
    """The message of a response; None unless it has exactly one."""
    if whole.get("type") == "message":
        return {"role": "assistant", "content": whole.get("content")}
    choices = objects(whole.get("choices"))
    message = choices[0].get("message") if len(choices) == 1 else None
    return message if isinstance(message, dict) else None


def _scope(request: ApiRequest) -> bytes:
    return dumps([request.tenant, request.api.name, request.model])


def _digests(request: ApiRequest, messages: Sequence[JsonObject]) -> Iterator[bytes]:
    """Digests of the conversation up to each message. Instructions may change, and answers may have any of the repaired forms."""
    digest = _scope(request)
    for message in messages:
        role = message.get("role")
        if role not in _SYSTEM:
            blocks = _blocks(message.get("content"))
            parts = _answer_parts(message, blocks) if role == "assistant" else map(_canonical, blocks)
            digest = _digest(digest, dumps(role), *parts)
        yield digest


def _answer_parts(message: JsonObject, blocks: list[JsonObject]) -> Iterator[bytes]:
    """The text and the calls, without reasoning, ids, and white space."""
    text = "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
    yield _SPACE.sub(" ", text).strip().encode("utf-8", "replace")
    for block in blocks:
        if block.get("type") not in ("text", *_REASONING_BLOCKS):
            yield _canonical({name: value for name, value in block.items() if name != "id"})
    for call in objects(message.get("tool_calls")):
        function = call.get("function")
        yield _canonical({"name": field(function, "name"), "arguments": _parsed(field(function, "arguments"))})


def _blocks(content: Json) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _parsed(arguments: Json) -> Json:
    try:
        return loads(arguments.encode()) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _canonical(value: JsonObject) -> bytes:
    """Clients may change the ids of calls and the breakpoints."""
    plain = {name: each for name, each in value.items() if name not in (_MARKER, "tool_use_id")}
    try:
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return dumps(plain)


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _restored(request: ApiRequest, message: JsonObject, original: JsonObject, kinds: list[str]) -> JsonObject:
    if request.api.name == "chat":
        return _restored_message(message, original, kinds)
    may_think = field(request.body.get("thinking"), "type") in ("enabled", "adaptive")
    return _restored_blocks(message, original, kinds, may_think=may_think)


def _restored_message(message: JsonObject, original: JsonObject, kinds: list[str]) -> JsonObject:
    restored = dict(message)
    reasoning = {name: original[name] for name in _REASONING_FIELDS if original.get(name)}
    if reasoning and not any(message.get(name) for name in _REASONING_FIELDS):
        restored |= reasoning
        kinds.append("reasoning")
    content, before = message.get("content"), original.get("content")
    if isinstance(content, str | None) and isinstance(before, str | None) and content != before:
        restored["content"] = before
        kinds.append("text")
    calls: list[Json] = []
    for call, known in zip(objects(message.get("tool_calls")), objects(original.get("tool_calls")), strict=False):
        function, arguments = call.get("function"), field(known.get("function"), "arguments")
        if isinstance(function, dict) and isinstance(arguments, str) and function.get("arguments") != arguments:
            call = {**call, "function": {**function, "arguments": arguments}}
            kinds.append("arguments")
        calls.append(call)
    return {**restored, "tool_calls": calls} if calls else restored


def _restored_blocks(message: JsonObject, original: JsonObject, kinds: list[str], *, may_think: bool) -> JsonObject:
    """Restore blocks with the client's ids and breakpoints, and dropped reasoning if the request may think."""
    sent, known = _blocks(message.get("content")), objects(original.get("content"))
    spoken = [block for block in known if not _is_reasoning(block)]
    if [block.get("type") for block in sent if not _is_reasoning(block)] != [block.get("type") for block in spoken]:
        return message
    source, changes = sent, list[str]()
    if may_think and len(spoken) < len(known) and not any(map(_is_reasoning, sent)):
        source = known
        changes.append("reasoning")
    originals, clients = iter(spoken), iter(block for block in sent if not _is_reasoning(block))
    restored: list[Json] = []
    for block in source:
        if _is_reasoning(block):
            restored.append(block)
            continue
        block, client = next(originals), next(clients)
        changes += _differences(client, block)
        restored.append({**block, **{name: client[name] for name in ("id", _MARKER) if name in client}})
    kinds += changes
    return {**message, "content": restored} if changes else message


def _is_reasoning(block: JsonObject) -> bool:
    return block.get("type") in _REASONING_BLOCKS


def _differences(client: JsonObject, original: JsonObject) -> list[str]:
    if client.get("text") != original.get("text"):
        return ["text"]
    # The order of an object's fields is a part of the model's prompt.
    return ["arguments"] if dumps(client.get("input")) != dumps(original.get("input")) else []
