from collections.abc import Iterator
from dataclasses import replace

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs import request_fields as fields
from kvproxy.apis.codecs.choices import ChoicesEncoder, prompt_logprobs, usage_of
from kvproxy.apis.codecs.codec import Conversation, DecodedRequest, Echo
from kvproxy.apis.codecs.collected_output import CollectedChoice
from kvproxy.apis.codecs.output_formats import read_constraints
from kvproxy.apis.field_checks import check_integer
from kvproxy.apis.json import Json, JsonMap, JsonObject, objects
from kvproxy.errors import InvalidRequest
from kvproxy.generation import Delta, SamplingParams, TokenLogprob, ToolCall


def decode_prompt(body: JsonMap) -> Conversation:
    messages = tuple(fields.with_text_content(message) for message in objects(body.get("messages")))
    return Conversation(messages, tuple(objects(body.get("tools"))))


def decode(body: JsonMap, defaults: SamplingParams) -> DecodedRequest:
    fields.check_supported(body)
    prompt = decode_prompt(body)
    grammar, tools = read_constraints(body, prompt.tools, body.get("response_format"), "response_format")
    check_integer(body, "top_logprobs", least=0, most=20)
    if body.get("echo"):
        raise InvalidRequest("echo is a field of /v1/completions: remove it", param="echo")
    limit = fields.integer(body, "max_completion_tokens")
    request = fields.choices_request(
        body,
        prompt,
        defaults,
        max_tokens=fields.integer(body, "max_tokens") if limit is None else limit,
        logprobs=(fields.integer(body, "top_logprobs") or 0) if body.get("logprobs") else None,
        prompt_logprobs=fields.integer(body, "prompt_logprobs"),
    )
    return replace(request, grammar=grammar, tools=tools)


class ChatEncoder(ChoicesEncoder):
    def __init__(self, request: ApiRequest, model: str, echo: Echo | None) -> None:
        id = f"chatcmpl-{request.request_id}"
        super().__init__(request, model, id, "chat.completion", "chat.completion.chunk")

    def write(self, piece: Delta) -> Iterator[bytes]:
        if self._output.add(piece):
            yield self._chunk(_encode_choice(piece.index, {"role": "assistant", "content": ""}))
        if piece.text or piece.reasoning or piece.logprobs:
            delta: JsonObject = {"reasoning_content": piece.reasoning} if piece.reasoning else {}
            if piece.text or not piece.reasoning:
                delta["content"] = piece.text
            choice = _encode_choice(piece.index, delta)
            if piece.logprobs:
                choice["logprobs"] = {"content": [_encode_logprob(item) for item in piece.logprobs]}
            yield self._chunk(choice)
        if piece.calls:
            first = len(self._output.choices[piece.index].calls) - len(piece.calls)
            numbered: list[Json] = [
                {"index": call_index, **_encode_call(self._id, piece.index, call_index, call)}
                for call_index, call in enumerate(piece.calls, first)
            ]
            yield self._chunk(_encode_choice(piece.index, {"tool_calls": numbered}))
        if piece.finish_reason:
            yield self._chunk(_encode_choice(piece.index, {}, _finish_reason(self._output.choices[piece.index])))

    def response(self) -> JsonObject:
        choices: list[Json] = [
            _complete_choice(self._id, index, each) for index, each in sorted(self._output.choices.items())
        ]
        response: JsonObject = dict(self._head)
        if self._prompt_logprobs is not None:
            # vLLM returns the prompt's scores outside the choices of a chat, but in each choice of a completion.
            response["prompt_logprobs"] = prompt_logprobs(self._output, self._prompt_logprobs)
        return {**response, "choices": choices, "usage": usage_of(self._output)}


def _encode_choice(index: int, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _complete_choice(id: str, index: int, choice: CollectedChoice) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": choice.text}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        calls: list[Json] = [_encode_call(id, index, call_index, call) for call_index, call in enumerate(choice.calls)]
        message |= {"content": choice.text or None, "tool_calls": calls}
    complete: JsonObject = {"index": index, "message": message, "finish_reason": _finish_reason(choice)}
    if choice.logprobs:
        complete["logprobs"] = {"content": [_encode_logprob(item) for item in choice.logprobs]}
    return complete


def _finish_reason(choice: CollectedChoice) -> str | None:
    return "tool_calls" if choice.calls and choice.finish_reason == "stop" else choice.finish_reason


def _encode_call(id: str, index: int, call_index: int, call: ToolCall) -> JsonObject:
    function: JsonObject = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{id}-{index}-{call_index}", "type": "function", "function": function}


def _encode_logprob(item: TokenLogprob) -> JsonObject:
    top: list[Json] = [{"token": text, "logprob": value, "bytes": list(text.encode())} for _, text, value in item.top]
    return {"token": item.text, "logprob": item.logprob, "bytes": list(item.text.encode()), "top_logprobs": top}
