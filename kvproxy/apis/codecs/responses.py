"""Converts OpenAI's Responses API to prompts, and generated tokens to its responses."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs import request_fields as fields
from kvproxy.apis.codecs.codec import CollectedOutput, Conversation, DecodedRequest, Echo
from kvproxy.apis.codecs.generation import Delta, SamplingParams, ToolCall
from kvproxy.apis.codecs.ignored_fields import ignored_fields
from kvproxy.apis.json import Json, JsonMap, JsonObject, dumps, field, loads, objects
from kvproxy.apis.key_fields import RESPONSES
from kvproxy.apis.responses import item_events
from kvproxy.apis.sse import encode_event

_TEXT_PARTS = ("input_text", "output_text", "text")
_STATEFUL = ("previous_response_id", "conversation", "background", "prompt")
_SEPARATOR = "__"  # Between the name of a namespace and the name of its tool.
# A custom tool takes a text.
_CUSTOM_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_HOSTED_CALLS = ("web_search_call", "file_search_call", "mcp_list_tools", "tool_search_call", "tool_search_output")


def decode_prompt(body: JsonMap) -> Conversation:
    source, instructions = body.get("input"), body.get("instructions")
    items: list[JsonObject] = [{"role": "user", "content": source}] if isinstance(source, str) else objects(source)
    first: list[JsonObject] = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    tools = tuple(_decode_tool(name, tool) for name, (_, tool) in _callable_tools(body).items())
    return Conversation((*first, *_decode_items(items)), tools)


def decode(body: JsonMap, defaults: SamplingParams) -> DecodedRequest:
    fields.check_supported(body)
    fields.reject_fields(body, _STATEFUL)
    prompt = decode_prompt(body)
    choice = body.get("tool_choice")
    named = {**choice, "type": "function"} if isinstance(choice, dict) and choice.get("type") == "custom" else choice
    json_format = field(body.get("text"), "format")
    grammar, tools = fields.read_constraints({**body, "tool_choice": named}, prompt.tools, json_format, "text.format")
    request = fields.base_request(body, prompt, defaults, max_tokens=fields.read_integer(body, "max_output_tokens"))
    ignored = ignored_fields(body, RESPONSES, fields.UNSUPPORTED)
    hosted = {f"input.{item['type']}" for item in objects(body.get("input")) if item.get("type") in _HOSTED_CALLS}
    return replace(request, grammar=grammar, tools=tools, ignored=(*ignored, *sorted(hosted)))


class ResponsesEncoder:
    def __init__(self, request: ApiRequest, model: str, echo: Echo | None) -> None:
        self._output = CollectedOutput()
        self._sequence_number = 0
        self._open: list[str] = []
        self._id = request.request_id
        self._start = _empty_response(request, model)
        self._tools = _callable_tools(request.body)

    def write(self, piece: Delta) -> Iterator[bytes]:
        if self._output.add(piece):
            for name in ("response.created", "response.in_progress"):
                yield self._encode_event({"type": name, "response": self._start})
        if piece.reasoning:
            if not self._open:
                yield from self._start_item(self._reasoning_item())
            yield self._encode_delta("response.reasoning_text.delta", {"delta": piece.reasoning})
        if piece.text:
            yield from self._start_message()
            yield self._encode_delta("response.output_text.delta", {"delta": piece.text, "logprobs": []})
        first = len(self._output.first_choice.calls) - len(piece.calls)
        for index, call in enumerate(piece.calls, first):
            yield from map(self._encode_event, item_events(index, self._encode_call(index, call)))

    def _start_message(self) -> Iterator[bytes]:
        message = self._message_item("in_progress")
        if message["id"] in self._open:
            return
        if self._open:
            yield from self._end_item(self._reasoning_item())
        yield from self._start_item(message)

    def _start_item(self, item: JsonObject) -> Iterator[bytes]:
        self._open.append(str(item["id"]))
        yield from map(self._encode_event, islice(item_events(len(self._open) - 1, item), 2))

    def _end_item(self, item: JsonObject) -> Iterator[bytes]:
        yield from map(self._encode_event, deque(item_events(len(self._open) - 1, item), maxlen=3))

    def _encode_delta(self, name: str, data: JsonObject) -> bytes:
        at: JsonObject = {"item_id": self._open[-1], "output_index": len(self._open) - 1, "content_index": 0}
        return self._encode_event({"type": name, **at, **data})

    def end(self) -> Iterator[bytes]:
        response = self.response()
        if not self._output.first_choice.calls:
            yield from self._start_message()
            yield from self._end_item(objects(response["output"])[-1])
        yield self._encode_event({"type": f"response.{response['status']}", "response": response})

    def response(self) -> JsonObject:
        output = self._output.first_choice
        status = "incomplete" if output.finish_reason == "length" else "completed"
        details: JsonObject | None = {"reason": "max_output_tokens"} if status == "incomplete" else None
        calls: list[Json] = [self._encode_call(index, call) for index, call in enumerate(output.calls)]
        reasoning: list[Json] = [self._reasoning_item()] if output.reasoning else []
        end: JsonObject = {
            "status": status,
            "incomplete_details": details,
            "output": calls or [*reasoning, self._message_item(status)],
            "usage": self._usage(),
        }
        return {**self._start, **end}

    def _encode_call(self, index: int, call: ToolCall) -> JsonObject:
        ids: JsonObject = {"id": f"fc_msg_{self._id}-{index}", "call_id": f"call_msg_{self._id}-{index}"}
        namespace, tool = self._tools.get(call.name, (None, {}))
        names: JsonObject = {"name": tool.get("name", call.name)}
        if namespace is not None:
            names["namespace"] = namespace
        if tool.get("type") == "custom":
            text = field(loads(call.arguments.encode()), "input")
            return {**ids, "type": "custom_tool_call", "status": "completed", **names, "input": text}
        return {**ids, "type": "function_call", "status": "completed", **names, "arguments": call.arguments}

    def _encode_event(self, data: JsonObject) -> bytes:
        self._sequence_number += 1
        return encode_event({**data, "sequence_number": self._sequence_number - 1}, str(data["type"]))

    def _message_item(self, status: str) -> JsonObject:
        text = self._output.first_choice.text
        part: JsonObject = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {"id": f"msg_{self._id}", "type": "message", "status": status, "role": "assistant", "content": [part]}

    def _reasoning_item(self) -> JsonObject:
        part: JsonObject = {"type": "reasoning_text", "text": self._output.first_choice.reasoning}
        return {"id": f"rs_msg_{self._id}", "type": "reasoning", "summary": [], "content": [part]}

    def _usage(self) -> JsonObject:
        output = self._output
        return {
            "input_tokens": output.prompt_tokens,
            "input_tokens_details": {"cached_tokens": output.cached_tokens},
            "output_tokens": output.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": output.reasoning_tokens},
            "total_tokens": output.prompt_tokens + output.completion_tokens,
        }


def _callable_tools(body: JsonMap) -> dict[str, tuple[str | None, JsonObject]]:
    """Return the tools that the client executes, each with its namespace, by the name that the model reads."""
    tools_by_name: dict[str, tuple[str | None, JsonObject]] = {}
    for tool in objects(body.get("tools")):
        if tool.get("type") == "namespace":
            space = str(tool.get("name"))
            inner = [
                inner_tool
                for inner_tool in objects(tool.get("tools"))
                if inner_tool.get("type") in ("function", "custom")
            ]
            tools_by_name |= {
                f"{space}{_SEPARATOR}{inner_tool.get('name')}": (space, inner_tool) for inner_tool in inner
            }
        elif tool.get("type") in ("function", "custom"):
            tools_by_name[str(tool.get("name") or "")] = None, tool
    return tools_by_name


def _decode_tool(name: str, tool: JsonObject) -> JsonObject:
    function: JsonObject = {"name": name}
    if "description" in tool:
        function["description"] = tool["description"]
    if tool.get("type") == "custom":
        function["parameters"] = _CUSTOM_PARAMETERS
    elif "parameters" in tool:
        function["parameters"] = tool["parameters"]
    return {"type": "function", "function": function}


def _decode_items(items: list[JsonObject]) -> Iterator[JsonObject]:
    reasoning = ""
    for item in items:
        if item.get("type") == "reasoning":
            reasoning += "".join(str(part.get("text") or "") for part in objects(item.get("content")))
            continue
        if item.get("type") in _HOSTED_CALLS:
            continue
        message = _decode_item(item)
        if reasoning and message.get("role") == "assistant":
            message["reasoning_content"] = reasoning
        reasoning = ""
        yield message


def _decode_item(item: JsonObject) -> JsonObject:
    match item.get("type", "message"):
        case "message":
            role = "system" if item.get("role") == "developer" else item.get("role")
            return {"role": role, "content": _text(item.get("content"))}
        case "function_call" | "custom_tool_call" as kind:
            space, name = item.get("namespace"), str(item.get("name"))
            arguments = (
                dumps({"input": item.get("input")}).decode() if kind == "custom_tool_call" else item.get("arguments")
            )
            function: JsonObject = {"name": f"{space}{_SEPARATOR}{name}" if space else name, "arguments": arguments}
            call: JsonObject = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output" | "custom_tool_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _text(item.get("output"))}
    raise fields.unsupported_error(f"{item.get('type')!r} items", "input", "send messages")


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts = objects(content)
    if not isinstance(content, list) or len(parts) < len(content):
        raise fields.only_text_error("input")
    if any(part.get("type") not in _TEXT_PARTS for part in parts):
        raise fields.only_text_error("input")
    return "".join(str(part.get("text", "")) for part in parts)


def _empty_response(request: ApiRequest, model: str) -> JsonObject:
    body = request.body
    return {
        "id": f"resp_{request.request_id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": body.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }
