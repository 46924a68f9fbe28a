"""Converts Anthropic's messages to prompts, and generated tokens to their responses."""

from collections.abc import Iterator
from dataclasses import replace

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs import request_fields as fields
from kvproxy.apis.codecs.codec import CollectedOutput, Conversation, DecodedRequest, Echo
from kvproxy.apis.codecs.generation import Delta, SamplingParams, ToolCall
from kvproxy.apis.codecs.ignored_fields import ignored_fields
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_text, dumps, field, loads, objects, text_of
from kvproxy.apis.key_fields import MESSAGES
from kvproxy.apis.messages import encode_typed_event

_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_OUTPUT_CONFIG = frozenset(("format", "effort", "task_budget"))
_THINKING = (None, "disabled", "adaptive", "enabled", "between_tools")
_IGNORED_IN_TEXT = ("tool_result", "tool_use", "thinking", "redacted_thinking")


def decode_prompt(body: JsonMap) -> Conversation:
    source = body.get("system")
    system = text_of(source) if source is not None else ""
    if system is None:
        raise fields.only_text_error("system")
    first: list[JsonObject] = [{"role": "system", "content": system}] if system else []
    turns = [turn for message in objects(body.get("messages")) for turn in _decode_turns(message)]
    # The provider executes tools of other types, or defines their parameters.
    own = [tool for tool in objects(body.get("tools")) if tool.get("type") in (None, "custom")]
    return Conversation((*first, *turns), tuple(map(_decode_tool, own)))


def decode(body: JsonMap, defaults: SamplingParams) -> DecodedRequest:
    fields.check_supported(body)
    # The response would contain an id for the next request, or only a summary.
    fields.reject_fields(body, ("thread", "container", "compaction"))
    prompt, name = decode_prompt(body), "output_format" if body.get("output_format") else "output_config"
    config = body.get("output_config")
    if isinstance(config, dict) and (unknown := set(config) - _OUTPUT_CONFIG):
        raise fields.unsupported_error(f"{min(unknown)} of output_config", name)
    grammar, tools = fields.read_constraints(
        body, prompt.tools, body.get("output_format") or field(config, "format"), name
    )
    if field(body.get("thinking"), "type") not in _THINKING:
        raise fields.unsupported_error("this type of thinking", "thinking", "use the type adaptive")
    numbers = {name: fields.read_integer(body, name) for name in ("max_tokens", "top_k")}
    request = fields.base_request(body, prompt, defaults, stop=fields.read_strings(body, "stop_sequences"), **numbers)
    return replace(request, grammar=grammar, tools=tools, ignored=ignored_fields(body, MESSAGES, fields.UNSUPPORTED))


class MessagesEncoder:
    def __init__(self, request: ApiRequest, model: str, echo: Echo | None) -> None:
        self._output = CollectedOutput()
        self._blocks = 0
        self._open = ""
        self._head: JsonObject = {
            "id": f"msg_{request.request_id}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }

    def write(self, piece: Delta) -> Iterator[bytes]:
        if self._output.add(piece):
            start: JsonObject = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage(0)}
            yield encode_typed_event({"type": "message_start", "message": {**self._head, **start}})
        if piece.reasoning:
            if self._open != "thinking":
                yield from self._start_block({"type": "thinking", "thinking": "", "signature": ""})
            yield self._encode_delta({"type": "thinking_delta", "thinking": piece.reasoning})
        if piece.text:
            if self._open != "text":
                yield from self._start_block({"type": "text", "text": ""})
            yield self._encode_delta({"type": "text_delta", "text": piece.text})
        for call in piece.calls:
            yield from self._start_block({**self._encode_call(self._blocks, call), "input": {}})
            yield self._encode_delta({"type": "input_json_delta", "partial_json": call.arguments})
            yield from self._stop_block()

    def _start_block(self, block: JsonObject) -> Iterator[bytes]:
        yield from self._stop_block()
        self._blocks, self._open = self._blocks + 1, as_text(block["type"])
        yield encode_typed_event({"type": "content_block_start", "index": self._blocks - 1, "content_block": block})

    def _stop_block(self) -> Iterator[bytes]:
        if self._open:
            self._open = ""
            yield encode_typed_event({"type": "content_block_stop", "index": self._blocks - 1})

    def _encode_delta(self, delta: JsonObject) -> bytes:
        return encode_typed_event({"type": "content_block_delta", "index": self._blocks - 1, "delta": delta})

    def end(self) -> Iterator[bytes]:
        if self._open != "text" and not self._output.first_choice.calls:
            yield from self._start_block({"type": "text", "text": ""})
        yield from self._stop_block()
        yield encode_typed_event({"type": "message_delta", "delta": self._stop_fields(), "usage": self._usage()})
        yield encode_typed_event({"type": "message_stop"})

    def response(self) -> JsonObject:
        output = self._output.first_choice
        text: list[Json] = [{"type": "text", "text": output.text}] if output.text or not output.calls else []
        if output.reasoning:
            text.insert(0, {"type": "thinking", "thinking": output.reasoning, "signature": ""})
        calls: list[Json] = [
            {**self._encode_call(index, call), "input": loads(call.arguments.encode())}
            for index, call in enumerate(output.calls)
        ]
        return {**self._head, "content": [*text, *calls], **self._stop_fields(), "usage": self._usage()}

    def _encode_call(self, index: int, call: ToolCall) -> JsonObject:
        return {"type": "tool_use", "id": f"toolu_{self._head['id']}-{index}", "name": call.name}

    def _stop_fields(self) -> JsonObject:
        output = self._output.first_choice
        if output.stop_string is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": output.stop_string}
        calls_tool = output.calls and output.finish_reason == "stop"
        reason = "tool_use" if calls_tool else _REASONS[output.finish_reason or "stop"]
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self, output_tokens: int | None = None) -> JsonObject:
        output = self._output
        return {
            "input_tokens": output.prompt_tokens - output.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": output.cached_tokens,
            "output_tokens": output.completion_tokens if output_tokens is None else output_tokens,
        }


def _decode_tool(tool: JsonObject) -> JsonObject:
    function: JsonObject = {
        "name": tool.get("name"),
        "description": tool.get("description", ""),
        "parameters": tool.get("input_schema", {}),
    }
    return {"type": "function", "function": function}


def _decode_turns(message: JsonObject) -> Iterator[JsonObject]:
    content = message.get("content")
    if isinstance(content, str):
        yield {"role": message["role"], "content": content}
        return
    blocks = objects(content)
    for block in blocks:
        if block.get("type") == "tool_result":
            content = block.get("content")
            result = "" if content is None else text_of(content)
            if result is None:
                raise fields.only_text_error("messages")
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
    calls: list[Json] = [_decode_call(block) for block in blocks if block.get("type") == "tool_use"]
    text = text_of([block for block in blocks if block.get("type") not in _IGNORED_IN_TEXT])
    if text is None:
        raise fields.only_text_error("messages")
    thoughts = "".join(str(block.get("thinking") or "") for block in blocks if block.get("type") == "thinking")
    if text or calls or thoughts:
        turn: JsonObject = {"role": message["role"], "content": text}
        yield turn | ({"tool_calls": calls} if calls else {}) | ({"reasoning_content": thoughts} if thoughts else {})


def _decode_call(block: JsonObject) -> JsonObject:
    arguments = dumps(block.get("input") or {}).decode()
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}
