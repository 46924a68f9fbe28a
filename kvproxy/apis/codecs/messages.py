"""Anthropic's Messages of the embedded engine."""

from collections.abc import Iterator

import orjson

from kvproxy.apis.codecs import request_fields as reading
from kvproxy.apis.codecs.codec import Conversation, DecodedRequest, Echo
from kvproxy.apis.codecs.collected_output import CollectedOutput
from kvproxy.apis.codecs.output_formats import check_one_form, json_format, tool_use
from kvproxy.apis.json import Json, JsonMap, JsonObject, field, loads, objects, text_of
from kvproxy.apis.messages import typed
from kvproxy.apis.request import ApiRequest
from kvproxy.errors import InvalidRequest
from kvproxy.generation import Delta, ToolCall

_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_PASSED_OVER = ("tool_result", "tool_use", "thinking", "redacted_thinking")


class MessagesCodec:
    """See `Codec`."""

    def decode_prompt(self, body: JsonMap) -> Conversation:
        given = body.get("system")
        system = text_of(given) if given is not None else ""
        if system is None:
            raise reading.only_text("system")
        first: list[JsonObject] = [{"role": "system", "content": system}] if system else []
        turns = [each for message in objects(body.get("messages")) for each in _turns(message)]
        return Conversation((*first, *turns), tuple(_tool(tool) for tool in objects(body.get("tools"))))

    def decode(self, body: JsonMap) -> DecodedRequest:
        reading.check_engine(body)
        reading.refuse(body, ("mcp_servers", "container"))
        form, name = self.decode_prompt(body), "output_format" if body.get("output_format") else "output_config"
        config = body.get("output_config")
        if isinstance(config, dict) and set(config) - {"format"}:
            raise InvalidRequest(
                "the embedded engine has output_config.format and no other: leave the rest out", param=name
            )
        grammar = json_format(body.get("output_format") or field(config, "format"), name)
        tools = tool_use(body, form.tools)
        check_one_form(grammar, tools, name)
        if field(body.get("thinking"), "type") not in (None, "disabled"):
            raise InvalidRequest(
                "the embedded engine has no thinking: leave it out, or use --upstream", param="thinking"
            )
        return DecodedRequest(
            form,
            max_tokens=reading.integer(body, "max_tokens"),
            temperature=reading.number(body, "temperature"),
            top_p=reading.number(body, "top_p"),
            top_k=reading.integer(body, "top_k"),
            stop=reading.texts(body, "stop_sequences"),
            salt=reading.salt(body),
            queue_priority=reading.integer(body, "priority") or 0,
            grammar=grammar,
            tools=tools,
        )

    def encoder(self, request: ApiRequest, model: str, echo: Echo | None) -> "MessagesEncoder":
        return MessagesEncoder(request, model)


class MessagesEncoder:
    """See `ResponseEncoder`."""

    def __init__(self, request: ApiRequest, model: str) -> None:
        self._output = CollectedOutput()
        self._blocks = 0
        self._head: JsonObject = {
            "id": f"msg_{request.request_id}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }

    def write(self, piece: Delta) -> Iterator[bytes]:
        if self._output.add(piece):
            begun: JsonObject = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage(0)}
            yield typed({"type": "message_start", "message": {**self._head, **begun}})
        if piece.text:
            if not self._blocks:
                yield self._begin({"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})
        for call in piece.calls:
            yield self._begin({**self._call(self._blocks, call), "input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
            yield typed({"type": "content_block_stop", "index": self._blocks - 1})

    def _begin(self, block: JsonObject) -> bytes:
        self._blocks += 1
        return typed({"type": "content_block_start", "index": self._blocks - 1, "content_block": block})

    def _delta(self, delta: JsonObject) -> bytes:
        return typed({"type": "content_block_delta", "index": self._blocks - 1, "delta": delta})

    def end(self) -> Iterator[bytes]:
        if not self._blocks:
            yield self._begin({"type": "text", "text": ""})
        if not self._output.first.calls:
            yield typed({"type": "content_block_stop", "index": 0})
        yield typed({"type": "message_delta", "delta": self._stopped(), "usage": self._usage()})
        yield typed({"type": "message_stop"})

    def whole(self) -> JsonObject:
        said = self._output.first
        text: list[Json] = [{"type": "text", "text": said.text}] if said.text or not said.calls else []
        calls: list[Json] = [
            {**self._call(at, call), "input": loads(call.arguments.encode())} for at, call in enumerate(said.calls)
        ]
        return {**self._head, "content": [*text, *calls], **self._stopped(), "usage": self._usage()}

    def _call(self, at: int, call: ToolCall) -> JsonObject:
        return {"type": "tool_use", "id": f"toolu_{self._head['id']}-{at}", "name": call.name}

    def _stopped(self) -> JsonObject:
        said = self._output.first
        called = said.calls and said.finish_reason == "stop"
        reason = "tool_use" if called else _REASONS[said.finish_reason or "stop"]
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self, output_tokens: int | None = None) -> JsonObject:
        said = self._output
        return {
            "input_tokens": said.prompt_tokens - said.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": said.cached_tokens,
            "output_tokens": said.completion_tokens if output_tokens is None else output_tokens,
        }


def _tool(tool: JsonObject) -> JsonObject:
    function: JsonObject = {
        "name": tool.get("name"),
        "description": tool.get("description", ""),
        "parameters": tool.get("input_schema", {}),
    }
    return {"type": "function", "function": function}


def _turns(message: JsonObject) -> Iterator[JsonObject]:
    """One message as chat knows it: results of tools are messages of their own there."""
    content = message.get("content")
    if isinstance(content, str):
        yield {"role": message["role"], "content": content}
        return
    blocks = objects(content)
    for block in blocks:
        if block.get("type") == "tool_result":
            result = text_of(block.get("content")) or ""
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
    calls: list[Json] = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    text = text_of([block for block in blocks if block.get("type") not in _PASSED_OVER])
    if text is None:
        raise reading.only_text("messages")
    if text or calls:
        yield {"role": message["role"], "content": text, **({"tool_calls": calls} if calls else {})}


def _call(block: JsonObject) -> JsonObject:
    written = orjson.dumps(block.get("input") or {}).decode()
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": block.get("name"), "arguments": written},
    }
