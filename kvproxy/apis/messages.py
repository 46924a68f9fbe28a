from collections.abc import Iterator

from kvproxy.apis.api import Api, ApiName, Assembler, Question, content_text, last_turn_question, token_counts
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
    loads,
    objects,
    text_of,
)
from kvproxy.apis.key_fields import MESSAGES
from kvproxy.apis.message_parts import REASONING_BLOCKS
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.apis.sse import encode_event, split_words
from kvproxy.errors import InvalidRequest, KvproxyError

# Fields of deltas and blocks by the type of the delta.
_TEXT_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MessageAssembler(Assembler):
    def __init__(self) -> None:
        self._message: JsonObject = {}
        self._blocks: list[JsonObject] = []
        self._inputs: dict[int, str] = {}

    def add(self, part: JsonObject) -> None:
        match part["type"]:
            case "message_start":
                if self._message:
                    raise ValueError("a second message in one stream")
                self._message = dict(as_object(part["message"]))
            case "content_block_start":
                if part["index"] != len(self._blocks):
                    raise ValueError("content blocks are out of order")
                self._blocks.append(dict(as_object(part["content_block"])))
            case "content_block_delta":
                self._add_delta(as_index(part["index"]), as_object(part["delta"]))
            case "message_delta":
                delta, before = as_object(part["delta"]), self._message.get("stop_reason")
                if before and delta.get("stop_reason") not in (None, before):
                    raise ValueError("two different stop reasons in one stream")
                self._message |= delta
                usage = {name: value for name, value in as_object(part.get("usage") or {}).items() if value is not None}
                self._message["usage"] = {**as_object(self._message.get("usage") or {}), **usage}
            case "message_stop":
                self.done = True

    def _add_delta(self, index: int, delta: JsonObject) -> None:
        if index >= len(self._blocks):
            raise ValueError("a delta without a content block")
        block, kind = self._blocks[index], as_text(delta["type"])
        if kind in _TEXT_FIELDS:
            name = _TEXT_FIELDS[kind]
            block[name] = as_text(block.get(name) or "") + as_text(delta[name])
        elif kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + as_text(delta["partial_json"])
        elif kind == "citations_delta":
            block["citations"] = [*as_list(block.get("citations") or []), delta["citation"]]
        else:
            # The client receives unknown deltas, but they cannot be assembled.
            raise ValueError(f"unknown delta type {kind}")

    def result(self) -> JsonObject | None:
        if not self.done:
            return None
        for index, text in self._inputs.items():
            self._blocks[index]["input"] = loads(text.encode()) if text.strip() else {}
        return {**self._message, "content": list[Json](self._blocks)}


_COMPLETE = frozenset(("end_turn", "tool_use", "stop_sequence", "max_tokens"))
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

    def is_storable(self, response: JsonObject, body: JsonMap) -> bool:
        blocks = response.get("content")
        if response.get("type") != "message" or not isinstance(blocks, list) or not blocks:
            return False
        # A container expires, and the client sends its id with the next request.
        if response.get("container"):
            return False
        return response.get("error") is None and response.get("stop_reason") in _COMPLETE

    def output_text(self, response: JsonMap) -> str | None:
        content = objects(response.get("content"))
        return text_of([block for block in content if block.get("type") not in REASONING_BLOCKS])

    def prompt_and_completion_tokens(self, response: JsonMap) -> tuple[int, int]:
        prompt, completion = token_counts(response, "input_tokens", "output_tokens")
        reuse = reported_reuse(response)
        return prompt if reuse is None else reuse.prompt_tokens, completion

    def replay(self, response: JsonObject, body: JsonMap) -> Iterator[bytes]:
        usage = as_object(response.get("usage") or {})
        start: JsonObject = {
            **response,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 0},
        }
        yield encode_typed_event({"type": "message_start", "message": start})
        for index, block in enumerate(as_list(response["content"])):
            empty, deltas = _split_into_deltas(as_object(block))
            yield encode_typed_event({"type": "content_block_start", "index": index, "content_block": empty})
            for delta in deltas:
                yield encode_typed_event({"type": "content_block_delta", "index": index, "delta": delta})
            yield encode_typed_event({"type": "content_block_stop", "index": index})
        end: JsonObject = {name: response.get(name) for name in ("stop_reason", "stop_sequence")}
        yield encode_typed_event({"type": "message_delta", "delta": end, "usage": usage})
        yield encode_typed_event({"type": "message_stop"})


def anthropic_error(error: KvproxyError) -> JsonObject:
    return {"type": "error", "error": {"type": _ERRORS.get(error.status, "api_error"), "message": error.message}}


def encode_typed_event(data: JsonObject) -> bytes:
    return encode_event(data, as_text(data["type"]))


def _split_into_deltas(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    kind = block.get("type")
    if kind == "text":
        citations: list[JsonObject] = [
            {"type": "citations_delta", "citation": each} for each in as_list(block.get("citations") or [])
        ]
        texts: list[JsonObject] = [{"type": "text_delta", "text": word} for word in split_words(as_text(block["text"]))]
        start: JsonObject = {**block, "text": ""}
        return ({**start, "citations": []} if citations else start), [*citations, *texts]
    if kind == "thinking":
        thoughts: list[JsonObject] = [
            {"type": "thinking_delta", "thinking": word} for word in split_words(as_text(block["thinking"]))
        ]
        if block.get("signature"):
            thoughts.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, thoughts
    if kind in ("tool_use", "server_tool_use", "mcp_tool_use") and block.get("input"):
        arguments = dumps(block["input"]).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    return block, []
