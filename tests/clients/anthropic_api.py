"""A scripted Messages API, with Anthropic's rules for prompt caching, message threads, and signatures of thinking."""

import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.clients.agent_script import Conversation, Text
from tests.clients.event_stream import event_stream
from tests.clients.prompt_cache import Block, InvalidMarksError, PromptUsage, rules_of
from tests.clients.scripted_api import ScriptedApi

THREADS_BETA = "message-threads-2026-08-12"
MODELS = ("claude-opus-5", "claude-sonnet-5-5", "claude-haiku-4-5")
_THINKING = "The file has the word."
# Fields that the first request of a thread sets for all its turns; `model` must be sent again, and be the same.
_THREAD_FIELDS = ("system", "tools")
_HIDDEN = ("cache_control", "citations")


class ApiError(Exception):
    """A refused request.

    Attributes:
        code: `details.error_code`, by which SDKs select the class of the exception.
    """

    def __init__(self, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(slots=True)
class _Thread:
    """A response that may be continued, once."""

    body: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    continued: bool = False


@dataclass(frozen=True, slots=True)
class _Fingerprint:
    """The parts of a request that the provider compares for its diagnosis, each as the texts that the model reads."""

    model: str
    tools: Sequence[str]
    system: Sequence[str]
    messages: Sequence[Sequence[str]]
    parameters: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "_Fingerprint":
        parameters = [body.get(name) for name in ("tool_choice", "thinking", "output_config")]
        return cls(
            body["model"],
            [_read_text(tool) for tool in body.get("tools", [])],
            [_read_text(block) for block in _content_blocks(body.get("system", []))],
            [
                [message["role"], *(_read_text(block) for block in _content_blocks(message["content"]))]
                for message in body["messages"]
            ],
            json.dumps(parameters),
        )

    def difference(self, previous: "_Fingerprint") -> str | None:
        """Return the first part in which this request does not continue the previous one."""
        for name in ("model", "tools", "system"):
            if getattr(self, name) != getattr(previous, name):
                return f"{name}_changed"
        if self.parameters != previous.parameters:
            return "unavailable"
        is_continued = self.messages[: len(previous.messages)] == previous.messages
        return None if is_continued else "messages_changed"


@dataclass(slots=True)
class AnthropicApi(ScriptedApi):
    """The Messages API.

    Attributes:
        answers: contents of the next answers, which replace those of the script.
        reports_cache: the usage has the tokens that were read and written.
    """

    answers: list[list[dict[str, Any]]] = field(default_factory=list)
    reports_cache: bool = True
    _threads: dict[str, _Thread] = field(default_factory=dict)
    _fingerprints: dict[str, "_Fingerprint"] = field(default_factory=dict)
    _thoughts: set[str] = field(default_factory=set)
    _name: str = field(default_factory=lambda: uuid4().hex[:6])

    async def answer(self, request: Request) -> Response:
        """Answer a request to a route below `/v1/messages`."""
        self._count += 1
        headers = {"request-id": f"req_{self._count:06}"}
        try:
            body = json.loads(await request.body())
            if request.url.path.endswith("/count_tokens"):
                tokens = sum(block.tokens for block in blocks_of(body))
                return JSONResponse({"input_tokens": tokens}, headers=headers)
            if request.url.path.rstrip("/") != "/v1/messages":
                raise ApiError("Not found", 404)
            message = self._message(body, request)
        except ApiError as error:
            self.errors.append(str(error))
            kind = "not_found_error" if error.status == 404 else "invalid_request_error"
            document: dict[str, Any] = {"type": kind, "message": str(error)}
            if error.code is not None:
                document["details"] = {"error_code": error.code}
            envelope = {"type": "error", "error": document, "request_id": headers["request-id"]}
            return JSONResponse(envelope, error.status, headers)
        if body.get("stream"):
            return event_stream(message_events(message), pause=self.pause, headers=headers)
        return JSONResponse(message, headers=headers)

    def _message(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        self.bodies.append(body)
        for name in ("model", "messages", "max_tokens"):
            if name not in body:
                raise ApiError(f"{name}: Field required")
        continued = self._continued_thread(body, request.headers.get("anthropic-beta", ""))
        whole = body
        if continued is not None:
            held = {name: continued.body[name] for name in _THREAD_FIELDS if name in continued.body}
            whole = body | held | {"messages": [*continued.messages, *body["messages"]]}
        _check_signatures(whole["messages"], self._thoughts)
        _check_empty_output(body)
        account = request.headers.get("x-api-key") or request.headers.get("authorization", "")
        blocks = list(blocks_of(whole))
        check_marks(whole)
        try:
            usage = self.cache.use(rules_of(body["model"]), blocks, f"{account}\0{body['model']}")
        except InvalidMarksError as error:
            raise ApiError(str(error)) from None
        if continued is not None:
            continued.continued = True
        self.usages.append(usage)
        content = self.answers.pop(0) if self.answers else [*_thinking(body), *self._content(whole)]
        self._thoughts |= {block["signature"] for block in content if block["type"] == "thinking"}
        if body["max_tokens"] == 0:
            content = []
        message_id = f"msg_{self._name}{self._count:06}"
        if "thread" in body:
            messages = [*whole["messages"], {"role": "assistant", "content": content}]
            self._threads[message_id] = _Thread(whole, messages)
        return {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": _stop_reason(content),
            "stop_sequence": None,
            "usage": self._usage(usage, sum(len(json.dumps(block)) for block in content) // 4),
            **self._diagnosis(whole, message_id),
        }

    def _usage(self, usage: PromptUsage, output_tokens: int) -> dict[str, Any]:
        if self.reports_cache:
            return usage_of(usage, output_tokens)
        return {"input_tokens": usage.total, "output_tokens": output_tokens}

    def _diagnosis(self, body: Mapping[str, Any], message_id: str) -> dict[str, Any]:
        if "diagnostics" not in body:
            return {}
        fingerprint = self._fingerprints[message_id] = _Fingerprint.of(body)
        previous_id = body["diagnostics"]["previous_message_id"]
        if previous_id is None:
            return {"diagnostics": None}
        previous = self._fingerprints.get(previous_id)
        reason = "previous_message_not_found" if previous is None else fingerprint.difference(previous)
        return {"diagnostics": None if reason is None else {"cache_miss_reason": {"type": reason}}}

    def _continued_thread(self, body: Mapping[str, Any], betas: str) -> _Thread | None:
        if "thread" not in body:
            return None
        if THREADS_BETA not in betas:
            raise ApiError("thread: Extra inputs are not permitted")
        if body["thread"]["type"] == "create":
            return None
        previous = self._threads.get(body["thread"]["previous_message_id"])
        if previous is None:
            raise ApiError("No usable Thread state was found.", 404, "thread_not_found")
        if previous.continued:
            raise ApiError("The response has already been continued.", code="thread_already_continued")
        changed = [
            name for name in ("model", *_THREAD_FIELDS) if name in body and body[name] != previous.body.get(name)
        ]
        if changed:
            text = f"These fields differ from the Thread: {', '.join(changed)}"
            raise ApiError(text, code="thread_fingerprint_mismatch")
        return previous

    def _content(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for index, part in enumerate(self.script(conversation_of(body))):
            if isinstance(part, Text):
                yield {"type": "text", "text": part.text}
            else:
                call_id = f"toolu_{self._count:06}{index}"
                yield {"type": "tool_use", "id": call_id, "name": part.name, "input": dict(part.arguments)}


def usage_of(usage: PromptUsage, output_tokens: int) -> dict[str, Any]:
    """Return the `usage` of a response."""
    return {
        "input_tokens": usage.uncached,
        "cache_creation_input_tokens": sum(usage.written.values()),
        "cache_read_input_tokens": usage.read,
        "cache_creation": {f"ephemeral_{name}_input_tokens": count for name, count in usage.written.items()},
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


def blocks_of(body: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the blocks of a prompt. `cache_control` of the request marks its last block."""
    # Deferred tools are no part of the prefix: a `tool_reference` adds them after the search that found them.
    raw = [(tool, "", "") for tool in body.get("tools", []) if not tool.get("defer_loading")]
    raw += [(block, "", "system") for block in _content_blocks(body.get("system", []))]
    # A change of these parameters keeps the cached tools and system prompt only.
    scope = json.dumps([body.get("thinking"), body.get("tool_choice"), body.get("output_config")])
    raw += [
        (block, scope, message["role"]) for message in body["messages"] for block in _content_blocks(message["content"])
    ]
    automatic = body.get("cache_control")
    for place, (block, scope, role) in enumerate(raw):
        mark = block.get("cache_control") or (automatic if place == len(raw) - 1 else None)
        run = block["type"] if block.get("type") in ("tool_use", "tool_result") else ""
        yield Block(role + _read_text(block), (mark.get("ttl") or "5m") if mark else None, scope=scope, run=run)


def conversation_of(body: Mapping[str, Any]) -> Conversation:
    texts = [block["text"] for block in _content_blocks(body.get("system", []))]
    question = ""
    results: list[str] = []
    for message in body["messages"]:
        for block in _content_blocks(message["content"]):
            if block["type"] == "text":
                texts.append(block["text"])
                if message["role"] == "user" and not block["text"].startswith("<system-reminder>"):
                    question, results = block["text"], []
            elif block["type"] == "tool_result":
                results.append("".join(each.get("text", "") for each in _content_blocks(block.get("content", []))))
    tools = {tool["name"]: tool.get("input_schema", {}) for tool in body.get("tools", [])}
    return Conversation(texts, question, results, tools)


def _content_blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _read_text(block: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in block.items() if name not in _HIDDEN})


def _stop_reason(content: Sequence[Mapping[str, Any]]) -> str:
    if not content:
        return "max_tokens"
    return "tool_use" if content[-1]["type"] == "tool_use" else "end_turn"


def _check_empty_output(body: Mapping[str, Any]) -> None:
    """Check the limits of requests that only fill the cache."""
    requires_output = (
        body.get("stream")
        or body.get("thinking", {}).get("type") == "enabled"
        or body.get("output_config", {}).get("format")
        or body.get("tool_choice", {}).get("type") in ("any", "tool")
    )
    if body["max_tokens"] == 0 and requires_output:
        raise ApiError("max_tokens: 0 is not supported with this request")


def check_marks(body: Mapping[str, Any]) -> None:
    blocks = [*body.get("tools", []), *_content_blocks(body.get("system", []))]
    for message in body["messages"]:
        blocks += _content_blocks(message["content"])
    for block in blocks:
        if "cache_control" not in block:
            continue
        if block.get("type") in ("thinking", "redacted_thinking"):
            raise ApiError("cache_control cannot be set for thinking blocks")
        if block.get("type") == "text" and not block["text"]:
            raise ApiError("cache_control cannot be set for empty text blocks")
        if block.get("defer_loading"):
            raise ApiError("cache_control cannot be set for tools with defer_loading")


def _thinking(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if body.get("thinking", {}).get("type") in ("enabled", "adaptive"):
        yield {"type": "thinking", "thinking": _THINKING, "signature": _signature(_THINKING)}


def _signature(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _check_signatures(messages: Sequence[Mapping[str, Any]], issued: Container[str]) -> None:
    for place, message in enumerate(messages):
        for block in _content_blocks(message["content"]):
            is_thought = block["type"] == "thinking" and block["signature"] not in issued
            if is_thought and block["signature"] != _signature(block["thinking"]):
                raise ApiError(f"messages.{place}: Invalid `signature` in `thinking` block")


def message_events(message: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a message in the published form."""
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty: dict[str, Any] = {"text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        elif block["type"] == "thinking":
            empty = {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            empty = {"input": {}}
            encoded = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces(encoded))]
        events.append({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
        if index == 0:
            events.append({"type": "ping"})
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    events += [{"type": "message_delta", "delta": ended, "usage": usage}, {"type": "message_stop"}]
    for event in events:
        yield event["type"], event


def pieces(text: str) -> Iterator[str]:
    """Split a text after spaces, as models split it into tokens."""
    start = 0
    while start < len(text):
        end = text.find(" ", start + 1)
        yield text[start : end if end > 0 else len(text)]
        start = end if end > 0 else len(text)
