"""Anthropic's Messages API."""

from collections.abc import Iterator

from kvproxy.apis.api import (
    STREAM_FIELD,
    Api,
    ApiName,
    Assembler,
    Question,
    TokenCounts,
    content_text,
    last_turn_question,
    token_counts,
)
from kvproxy.apis.field_checks import (
    allows_semantic,
    check_common_fields,
    check_integer,
    check_messages,
    check_object,
    check_objects,
    check_texts,
)
from kvproxy.apis.json import (
    Json,
    JsonMap,
    JsonObject,
    as_index,
    as_list,
    as_object,
    as_text,
    dumps,
    field,
    loads,
    objects,
    text_of,
)
from kvproxy.apis.key_fields import MESSAGES
from kvproxy.apis.message_parts import REASONING_BLOCKS
from kvproxy.apis.not_stored import Cause, NotStored, Unmergeable, UnstorableResponse
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.apis.sse import encode_event, split_words
from kvproxy.apis.stream_merge import merge_delta, merge_whole_values
from kvproxy.errors import InvalidRequest, KvproxyError

# Fields of deltas and blocks by the type of the delta.
_TEXT_FIELDS = {"text_delta": "text", "thinking_delta": "thinking"}
_SUMMARY_FIELDS = ("content", "encrypted_content")
_WITHOUT_OUTPUT = ("content_block_stop", "ping")


class MessageAssembler(Assembler):
    def __init__(self) -> None:
        self._start: JsonObject = {}
        self._blocks: list[JsonObject] = []
        self._inputs: dict[int, str] = {}
        self._end: JsonObject = {"delta": {}, "usage": {}}

    def add(self, part: JsonObject, name: bytes) -> None:
        match part["type"]:
            case "message_start":
                if self._start and (self._blocks or part["message"] != self._start):
                    raise UnstorableResponse(Cause.INVALID, "a second message in one stream")
                self._start = dict(as_object(part["message"]))
            case "content_block_start":
                if part["index"] != len(self._blocks):
                    raise Unmergeable("content")
                self._blocks.append(dict(as_object(part["content_block"])))
            case "content_block_delta":
                self._add_delta(as_index(part["index"]), as_object(part["delta"]))
            case "message_delta":
                self._add_end({name: value for name, value in part.items() if name != "type"})
            case "message_stop":
                self.done = True
            case kind if kind not in _WITHOUT_OUTPUT:
                raise Unmergeable(f"event {kind}")

    def _add_end(self, end: JsonObject) -> None:
        # Bridges send the usage in a second event, without a stop reason.
        merge_whole_values(self._end, {**end, "delta": end.get("delta") or {}, "usage": end.get("usage") or {}})

    def _add_delta(self, index: int, delta: JsonObject) -> None:
        if index >= len(self._blocks):
            raise UnstorableResponse(Cause.INVALID, "a delta without a content block")
        block, kind = self._blocks[index], as_text(delta["type"])
        if kind in _TEXT_FIELDS:
            name = _TEXT_FIELDS[kind]
            block[name] = as_text(block.get(name) or "") + as_text(delta[name])
        elif kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + as_text(delta["partial_json"])
        elif kind == "citations_delta":
            block["citations"] = [*as_list(block.get("citations") or []), delta["citation"]]
        elif kind == "signature_delta":
            merge_delta(block, {"signature": as_text(delta["signature"])})
        elif kind == "compaction_delta":
            # One delta has the whole summary.
            merge_whole_values(block, {name: value for name, value in delta.items() if name != "type"})
        else:
            # The client receives unknown deltas, but they cannot be assembled.
            raise Unmergeable(kind)

    def result(self) -> JsonObject:
        if not self.done:
            raise UnstorableResponse(Cause.INCOMPLETE)
        for index, text in self._inputs.items():
            block = self._blocks[index]
            if text.strip():
                received = loads(text.encode())
                if block.get("input") not in (None, {}, received):
                    raise Unmergeable("input")
                block["input"] = received
        start = {name: value for name, value in self._start.items() if name != "content"}
        message: JsonObject = {**start, "content": list[Json](self._blocks)}
        # The last such block names the model of the answer.
        for block in self._blocks:
            if block.get("type") == "fallback" and (model := field(block.get("to"), "model")):
                message["model"] = model
        delta, beside = as_object(self._end["delta"]), {**self._end}
        usage = as_object(beside.pop("usage"))
        del beside["delta"]
        for name, value in (*delta.items(), *beside.items()):
            if value is not None or name not in message:
                message[name] = value
        reported = {name: value for name, value in usage.items() if value is not None}
        message["usage"] = {**as_object(start.get("usage") or {}), **reported}
        return {**message, STREAM_FIELD: {"start": start, "end": self._end}}


_COMPLETE = frozenset(("end_turn", "tool_use", "stop_sequence", "max_tokens"))
_STOP = ("stop_reason", "stop_sequence")
# Fields of a message that a stream sends in the event `message_delta`: in its `delta`, or beside it.
_DELTA = (*_STOP, "stop_details", "container")
_BESIDE_DELTA = ("context_management", "input_transformations")
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class Messages(Api):
    name: ApiName = "messages"
    path = "/v1/messages"
    assembler = MessageAssembler
    fields = MESSAGES

    def check(self, body: JsonMap) -> None:
        self.check_prompt(body)
        if body.get("max_tokens") is None:
            raise InvalidRequest("max_tokens is required: the most tokens to generate", param="max_tokens")

    def check_prompt(self, body: JsonMap) -> None:
        """Check the fields that requests to `/v1/messages/count_tokens` also have. Raises InvalidRequest."""
        check_common_fields(body)
        check_messages(body, (str, list))
        if not isinstance(body.get("system"), str | list | None):
            raise InvalidRequest("system must be a text or a list of text blocks", param="system")
        check_texts(body, "stop_sequences")
        check_integer(body, "top_k", least=0)
        check_objects(body, "tools")
        check_object(body, "thinking")

    def question(self, body: JsonObject) -> Question | None:
        return last_turn_question(body, "messages", content_text, allows_semantic=allows_semantic(body))

    def why_not_stored(self, response: JsonObject, body: JsonMap) -> NotStored | None:
        blocks, reason = response.get("content"), response.get("stop_reason")
        if response.get("error") is not None or response.get("type") == "error":
            return NotStored(Cause.ERROR)
        if response.get("type") != "message" or not isinstance(blocks, list):
            return NotStored(Cause.INVALID)
        # A container expires, and the client sends its id with the next request.
        if response.get("container"):
            return NotStored(Cause.STATE, "container")
        if reason not in _COMPLETE:
            return NotStored(Cause.INCOMPLETE, str(reason or ""))
        return None if blocks else NotStored(Cause.EMPTY)

    def output_text(self, response: JsonMap) -> str | None:
        content = objects(response.get("content"))
        return text_of([block for block in content if block.get("type") not in REASONING_BLOCKS])

    def prompt_and_completion_tokens(self, response: JsonMap) -> TokenCounts:
        prompt, completion = token_counts(response, "input_tokens", "output_tokens")
        reuse = reported_reuse(response)
        return prompt if reuse is None else reuse.prompt_tokens, completion

    def replay(self, response: JsonObject, body: JsonMap) -> Iterator[bytes]:
        start, end = _start_and_end(response)
        yield encode_typed_event({"type": "message_start", "message": {**start, "content": []}})
        for index, block in enumerate(as_list(response["content"])):
            empty, deltas = _split_into_deltas(as_object(block))
            yield encode_typed_event({"type": "content_block_start", "index": index, "content_block": empty})
            for delta in deltas:
                yield encode_typed_event({"type": "content_block_delta", "index": index, "delta": delta})
            yield encode_typed_event({"type": "content_block_stop", "index": index})
        yield encode_typed_event({"type": "message_delta", **end})
        yield encode_typed_event({"type": "message_stop"})


def _start_and_end(response: JsonObject) -> tuple[JsonObject, JsonObject]:
    """Return the message of the event `message_start` and the fields of `message_delta`, as received if they are stored."""
    if facts := response.get(STREAM_FIELD):
        return as_object(field(facts, "start")), as_object(field(facts, "end"))
    usage = as_object(response.get("usage") or {})
    beside: JsonObject = {name: response[name] for name in _BESIDE_DELTA if name in response}
    start: JsonObject = {name: value for name, value in response.items() if name not in beside}
    delta: JsonObject = {name: response.get(name) for name in _DELTA if name in response or name in _STOP}
    start |= dict.fromkeys(delta)
    start["usage"] = {**usage, "output_tokens": 0}
    return start, {"delta": delta, **beside, "usage": usage}


def anthropic_error(error: KvproxyError, request_id: str | None = None) -> JsonObject:
    inner: JsonObject = {"type": _ERRORS.get(error.status, "api_error"), "message": error.message}
    return {"type": "error", "error": inner, **({} if request_id is None else {"request_id": request_id})}


def encode_typed_event(data: JsonObject) -> bytes:
    return encode_event(data, as_text(data["type"]))


def _split_into_deltas(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    kind = block.get("type")
    if kind == "text":
        citations: list[JsonObject] = [
            {"type": "citations_delta", "citation": citation} for citation in as_list(block.get("citations") or [])
        ]
        texts: list[JsonObject] = [
            {"type": "text_delta", "text": word} for word in split_words(as_text(block.get("text") or ""))
        ]
        start: JsonObject = {**block, "text": ""}
        return ({**start, "citations": []} if citations else start), [*citations, *texts]
    if kind == "thinking":
        thoughts: list[JsonObject] = [
            {"type": "thinking_delta", "thinking": word} for word in split_words(as_text(block.get("thinking") or ""))
        ]
        if block.get("signature"):
            thoughts.append({"type": "signature_delta", "signature": block["signature"]})
        unsigned: JsonObject = {"signature": ""} if "signature" in block else {}
        return {**block, "thinking": "", **unsigned}, thoughts
    if kind == "compaction":
        summary: JsonObject = {name: block[name] for name in _SUMMARY_FIELDS if name in block}
        return {**block, **dict.fromkeys(summary)}, [{"type": "compaction_delta", **summary}]
    if kind in ("tool_use", "server_tool_use", "mcp_tool_use") and block.get("input"):
        arguments = dumps(block["input"]).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    return block, []
