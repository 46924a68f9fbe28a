"""Scripted Chat Completions, Completions, Responses, and Embeddings APIs, with OpenAI's rules for prompt caching."""

import base64
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.clients.agent_script import Conversation, Part, Text
from tests.clients.anthropic_api import ApiError, pieces
from tests.clients.event_stream import event_stream
from tests.clients.prompt_cache import Block, InvalidMarksError, PromptUsage, rules_of
from tests.clients.scripted_api import ScriptedApi

MODELS = ("gpt-5.6", "gpt-5.6-luna", "gpt-5.1", "gpt-4o", "text-embedding-3-small")
CREATED = 1_700_000_000
_DIMENSIONS = 8


@dataclass(slots=True)
class OpenAIApi(ScriptedApi):
    """The APIs of OpenAI."""

    _fingerprints: dict[str, dict[str, Any]] = field(default_factory=dict)
    _responses: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = field(default_factory=dict)

    async def answer(self, request: Request) -> Response:
        """Answer a request to any route."""
        self._count += 1
        path = request.url.path.removeprefix("/v1/").strip("/")
        try:
            if path.startswith("responses/") and request.method != "POST":
                return self._stored_response(path, request.method)
            if request.method != "POST":
                # A proxy asks for routes of other servers, such as /health and /metrics.
                return Response(status_code=404)
            body = json.loads(await request.body())
            routes: dict[str, Callable[[dict[str, Any], Request], Response]] = {
                "chat/completions": self._chat,
                "completions": self._completion,
                "responses": self._response,
                "embeddings": self._embeddings,
            }
            if path not in routes:
                raise ApiError(f"Invalid URL (POST /v1/{path})", 404)
            self.bodies.append(body)
            return routes[path](body, request)
        except (ApiError, InvalidMarksError) as error:
            self.errors.append(str(error))
            document = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
            return JSONResponse({"error": document}, getattr(error, "status", 400))

    def _bill(self, body: Mapping[str, Any], blocks: Sequence[Block], request: Request) -> PromptUsage:
        rules, options = rules_of(body["model"]), body.get("prompt_cache_options") or {}
        marked = any(block.lifetime for block in blocks)
        scope = f"{request.headers.get('authorization', '')}\0{body['model']}"
        if rules.kind == "breakpoints":
            # The key separates the cache. The output's format and the effort are rendered before the prompt.
            settings = [
                body.get(name) for name in ("prompt_cache_key", "text", "reasoning", "reasoning_effort", "verbosity")
            ]
            scope += f"\0{json.dumps(settings)}"
        elif options or marked:
            raise ApiError(f"prompt_cache_options and prompt_cache_breakpoint are not supported with {body['model']}")
        implicit = options.get("mode", "implicit") == "implicit"
        retention = body.get("prompt_cache_retention") if rules.kind == "steps" else None
        usage = self.cache.use(rules, blocks, scope, implicit=implicit, lifetime=retention)
        self.usages.append(usage)
        return usage

    def _chat(self, body: dict[str, Any], request: Request) -> Response:
        usage = self._bill(body, list(_chat_blocks(body)), request)
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
        calls = []
        for place, part in enumerate(self.script(_chat_conversation(body))):
            if isinstance(part, Text):
                message["content"] = part.text
            else:
                function = {"name": part.name, "arguments": json.dumps(part.arguments)}
                calls.append({"id": f"call_{self._count:06}{place}", "type": "function", "function": function})
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if calls else "stop"}
        whole = {
            "id": f"chatcmpl-{self._count:06}",
            "object": "chat.completion",
            "created": CREATED,
            "model": body["model"],
            "choices": [choice],
            "usage": _usage(usage, _tokens(message), "prompt", "completion"),
            "service_tier": "default",
            "system_fingerprint": "fp_1",
        }
        if body.get("stream"):
            return event_stream(_chat_chunks(whole, _includes_usage(body)), pause=self.pause, done=True)
        return JSONResponse(whole)

    def _completion(self, body: dict[str, Any], request: Request) -> Response:
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        prompt = "".join(str(each) for each in prompts)
        usage = self._bill(body, [Block(prompt, may_be_implicit=True)], request)
        text = _text_of(self.script(Conversation([prompt], prompt, [], {})))
        head = {"id": f"cmpl-{self._count:06}", "object": "text_completion", "created": CREATED, "model": body["model"]}
        billed = _usage(usage, _tokens(text), "prompt", "completion")

        def choices(piece: str, reason: str | None) -> dict[str, Any]:
            return {"choices": [{"text": piece, "index": 0, "logprobs": None, "finish_reason": reason}]}

        if not body.get("stream"):
            return JSONResponse(head | choices(text, "stop") | {"usage": billed})
        chunks = [head | choices(piece, None) for piece in pieces(text)] + [head | choices("", "stop")]
        if _includes_usage(body):
            chunks = [chunk | {"usage": None} for chunk in chunks] + [head | {"choices": [], "usage": billed}]
        return event_stream([(None, chunk) for chunk in chunks], pause=self.pause, done=True)

    def _response(self, body: dict[str, Any], request: Request) -> Response:
        items = _input_items(body)
        previous_id = body.get("previous_response_id")
        if previous_id is not None:
            if previous_id not in self._responses:
                raise ApiError(f"Previous response with id '{previous_id}' not found.")
            items = [*self._responses[previous_id][1], *items]
        usage = self._bill(body, list(_response_blocks(body, items)), request)
        output = list(self._output(body, items))
        whole = {
            "id": f"resp_{self._count:06}",
            "object": "response",
            "created_at": CREATED,
            "status": "completed",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "model": body["model"],
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": previous_id,
            "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
            "store": body.get("store", True),
            "temperature": 1.0,
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": _usage(usage, _tokens(output), "input", "output"),
            "metadata": body.get("metadata") or {},
            **self._diagnosis(body, items, f"resp_{self._count:06}"),
        }
        if body.get("store", True):
            self._responses[whole["id"]] = whole, [*items, *output]
        if body.get("stream"):
            return event_stream(_response_events(whole), pause=self.pause)
        return JSONResponse(whole)

    def _diagnosis(self, body: Mapping[str, Any], items: Sequence[Mapping[str, Any]], id: str) -> dict[str, Any]:
        """Return the field with the comparison that the request asks for, if its model has diagnoses."""
        if rules_of(body["model"]).kind != "breakpoints":
            return {}
        own = self._fingerprints[id] = _fingerprint(body, items)
        previous_id = (body.get("prompt_cache_options") or {}).get("comparison_response_id")
        if previous_id is None:
            return {}
        previous = self._fingerprints.get(previous_id)
        if previous is None:
            return {"prompt_cache_diagnostics": {"type": "comparison_response_not_found"}}
        changed = [name for name, value in own.items() if name != "input" and value != previous[name]]
        if not changed and own["input"][: len(previous["input"])] != previous["input"]:
            changed = ["input"]
        if not changed:
            return {"prompt_cache_diagnostics": {"type": "cache_hit"}}
        missed = {"type": "cache_miss", "reason": f"{changed[0]}_changed", "cache_missed_tokens": _tokens(items)}
        return {"prompt_cache_diagnostics": missed}

    def _output(self, body: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        if "reasoning.encrypted_content" in (body.get("include") or ()):
            encrypted = base64.b64encode(b"The file has the word.").decode()
            yield {"id": f"rs_{self._count:06}", "type": "reasoning", "summary": [], "encrypted_content": encrypted}
        for place, part in enumerate(self.script(_response_conversation(body, items))):
            if isinstance(part, Text):
                content = [{"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}]
                item = {"id": f"msg_{self._count:06}{place}", "type": "message", "role": "assistant"}
                yield item | {"status": "completed", "content": content}
            else:
                yield {
                    "id": f"fc_{self._count:06}{place}",
                    "type": "function_call",
                    "status": "completed",
                    "call_id": f"call_{self._count:06}{place}",
                    "name": part.name,
                    "arguments": json.dumps(part.arguments),
                }

    def _stored_response(self, path: str, method: str) -> Response:
        response_id = path.removeprefix("responses/")
        if response_id not in self._responses:
            raise ApiError(f"Response with id '{response_id}' not found.", 404)
        if method == "DELETE":
            del self._responses[response_id]
            return JSONResponse({"id": response_id, "object": "response", "deleted": True})
        return JSONResponse(self._responses[response_id][0])

    def _embeddings(self, body: dict[str, Any], request: Request) -> Response:
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = []
        for index, each in enumerate(inputs):
            digest = hashlib.sha256(str(each).encode()).digest()
            vector = [value / 255 for value in digest[: body.get("dimensions", _DIMENSIONS)]]
            encoded: Any = vector
            if body.get("encoding_format") == "base64":
                encoded = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            data.append({"object": "embedding", "index": index, "embedding": encoded})
        usage = {"prompt_tokens": _tokens(inputs), "total_tokens": _tokens(inputs)}
        return JSONResponse({"object": "list", "data": data, "model": body["model"], "usage": usage})


def _fingerprint(body: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parts of a request that OpenAI compares, by the name of its diagnosis, in the order of its checks."""
    text = body.get("text") or {}
    return {
        "model": body["model"],
        "service_tier": body.get("service_tier"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "text_format": json.dumps(text.get("format")),
        "verbosity": text.get("verbosity"),
        "reasoning_effort": (body.get("reasoning") or {}).get("effort"),
        "tools": json.dumps(body.get("tools")),
        "input": [
            body.get("instructions"),
            *([block.text for block in _message_blocks(items, i)] for i in range(len(items))),
        ],
    }


def _tokens(value: object) -> int:
    return max(1, len(json.dumps(value)) // 4)


def _text_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


def _includes_usage(body: Mapping[str, Any]) -> bool:
    return bool((body.get("stream_options") or {}).get("include_usage"))


def _usage(usage: PromptUsage, generated: int, prompt: str, completion: str) -> dict[str, Any]:
    return {
        f"{prompt}_tokens": usage.total,
        f"{prompt}_tokens_details": {"cached_tokens": usage.read, "cache_write_tokens": sum(usage.written.values())},
        f"{completion}_tokens": generated,
        f"{completion}_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total + generated,
    }


def _content_parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [] if content is None else [{"type": "text", "text": content}]


def _content_text(content: Any) -> str:
    return "".join(part.get("text", "") for part in _content_parts(content))


def _ends_prefix(messages: Sequence[Mapping[str, Any]], place: int) -> bool:
    """Whether OpenAI may place its breakpoint at the end of a message."""

    def kind(index: int) -> str:
        if not 0 <= index < len(messages):
            return ""
        message = messages[index]
        is_result = message.get("role") == "tool" or str(message.get("type", "")).endswith("_output")
        return "tool" if is_result else str(message.get("role"))

    instructions = ("system", "developer")
    if kind(place) in instructions:
        return all(kind(index) in instructions for index in range(place)) and kind(place + 1) not in instructions
    return kind(place) == "user" or (kind(place) == "tool" and kind(place + 1) != "tool")


def _message_blocks(messages: Sequence[Mapping[str, Any]], place: int) -> Iterator[Block]:
    """Yield the blocks of a message: its content parts, and the rest of its fields."""
    message, may_end = messages[place], _ends_prefix(messages, place)
    name = "output" if "output" in message and "content" not in message else "content"
    content, breakpoint_name = message.get(name), "prompt_cache_breakpoint"
    rest = json.dumps({key: value for key, value in message.items() if key not in (name, "id")})
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    for number, part in enumerate(parts):
        read = {key: part[key] for key in part if key not in (breakpoint_name, "type")}
        mark = part.get(breakpoint_name)
        lifetime = None if mark is None else mark.get("ttl", "30m")
        text = rest * (number == 0) + json.dumps(read)
        yield Block(text, lifetime, may_be_implicit=may_end and number == len(parts) - 1)


def billed_blocks(body: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the blocks of the prompt of a request to Chat Completions or Responses."""
    return _chat_blocks(body) if "messages" in body else _response_blocks(body, _input_items(body))


def _chat_blocks(body: Mapping[str, Any]) -> Iterator[Block]:
    yield from (Block(json.dumps(tool)) for tool in body.get("tools") or ())
    for place in range(len(body["messages"])):
        yield from _message_blocks(body["messages"], place)


def _chat_conversation(body: Mapping[str, Any]) -> Conversation:
    texts, question = [], ""
    results: list[str] = []
    for message in body["messages"]:
        text = _content_text(message.get("content"))
        texts.append(text)
        if message["role"] == "user":
            question, results = text, []
        elif message["role"] == "tool":
            results.append(text)
    functions = [tool["function"] for tool in body.get("tools") or () if tool.get("type") == "function"]
    return Conversation(texts, question, results, {each["name"]: each.get("parameters", {}) for each in functions})


def _chat_chunks(whole: Mapping[str, Any], include_usage: bool) -> Iterator[tuple[None, dict[str, Any]]]:
    head = {name: value for name, value in whole.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    message = whole["choices"][0]["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if message["content"] else None}]
    deltas[0]["refusal"] = None
    deltas += [{"content": piece} for piece in pieces(message["content"] or "")]
    for index, call in enumerate(message.get("tool_calls", ())):
        named = {"name": call["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, **call, "function": named}]})
        for piece in pieces(call["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    ends = [(delta, None) for delta in deltas] + [({}, whole["choices"][0]["finish_reason"])]
    for delta, reason in ends:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        yield None, {**head, "choices": [choice], **({"usage": None} if include_usage else {})}
    if include_usage:
        yield None, {**head, "choices": [], "usage": whole["usage"]}


def _input_items(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = body.get("input", [])
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [{"type": "message", **item} for item in given]


def _response_blocks(body: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    yield from (Block(json.dumps(tool)) for tool in body.get("tools") or ())
    if body.get("instructions"):
        yield Block(body["instructions"])
    for place in range(len(items)):
        yield from _message_blocks(items, place)


def _response_conversation(body: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Conversation:
    texts, question = [body.get("instructions") or ""], ""
    results: list[str] = []
    for item in items:
        if item["type"] == "message":
            texts.append(text := _content_text(item.get("content")))
            if item["role"] == "user":
                question, results = text, []
        elif item["type"].endswith("_output"):
            output = item.get("output")
            results.append(output if isinstance(output, str) else _content_text(output))
    functions = [tool for tool in body.get("tools") or () if tool.get("type") == "function"]
    return Conversation(texts, question, results, {each["name"]: each.get("parameters", {}) for each in functions})


def _response_events(whole: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, event in enumerate(_unnumbered_events(whole)):
        yield event["type"], {**event, "sequence_number": number}


def _unnumbered_events(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    started = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": started}
    yield {"type": "response.in_progress", "response": started}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index}
        if item["type"] == "message":
            yield {"type": "response.output_item.added", **at, "item": item | {"status": "in_progress", "content": []}}
            yield from _text_events(item, at)
        elif item["type"] == "function_call":
            added = item | {"status": "in_progress", "arguments": ""}
            yield {"type": "response.output_item.added", **at, "item": added}
            place = {"item_id": item["id"], **at}
            for piece in pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        else:
            yield {"type": "response.output_item.added", **at, "item": item}
        yield {"type": "response.output_item.done", **at, "item": item}
    yield {"type": "response.completed", "response": whole}


def _text_events(item: Mapping[str, Any], at: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for index, part in enumerate(item["content"]):
        place = {"item_id": item["id"], **at, "content_index": index}
        yield {"type": "response.content_part.added", **place, "part": part | {"text": ""}}
        for piece in pieces(part["text"]):
            yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
        yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}
