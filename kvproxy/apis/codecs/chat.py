"""Chat completions of the embedded engine."""

import time
from collections.abc import Iterator

from kvproxy.apis.choices import includes_usage
from kvproxy.apis.codecs import request_fields as reading
from kvproxy.apis.codecs.codec import Conversation, DecodedRequest, Echo
from kvproxy.apis.codecs.collected_output import CollectedChoice, CollectedOutput
from kvproxy.apis.codecs.output_formats import check_one_form, json_format, tool_use
from kvproxy.apis.fields import check_integer
from kvproxy.apis.json import Json, JsonMap, JsonObject, objects
from kvproxy.apis.request import ApiRequest
from kvproxy.apis.sse import DONE, event
from kvproxy.errors import InvalidRequest
from kvproxy.generation import Delta, TokenLogprob, ToolCall


class ChatCodec:
    """See `Codec`."""

    def decode_prompt(self, body: JsonMap) -> Conversation:
        turns = tuple(reading.flat(message) for message in objects(body.get("messages")))
        return Conversation(turns, tuple(objects(body.get("tools"))))

    def decode(self, body: JsonMap) -> DecodedRequest:
        reading.check_engine(body)
        form, grammar = self.decode_prompt(body), json_format(body.get("response_format"), "response_format")
        tools = tool_use(body, form.tools)
        check_one_form(grammar, tools, "response_format")
        check_integer(body, "top_logprobs", least=0, most=20)
        if body.get("echo"):
            raise InvalidRequest("echo belongs to /v1/completions: leave it out", param="echo")
        limit = reading.integer(body, "max_completion_tokens")
        return DecodedRequest(
            form,
            max_tokens=reading.integer(body, "max_tokens") if limit is None else limit,
            temperature=reading.number(body, "temperature"),
            top_p=reading.number(body, "top_p"),
            top_k=reading.integer(body, "top_k"),
            seed=reading.integer(body, "seed"),
            stop=reading.texts(body, "stop"),
            logprobs=(reading.integer(body, "top_logprobs") or 0) if body.get("logprobs") else None,
            prompt_logprobs=reading.integer(body, "prompt_logprobs"),
            n=reading.integer(body, "n") or 1,
            ignore_eos=bool(body.get("ignore_eos")),
            salt=reading.salt(body),
            queue_priority=reading.integer(body, "priority") or 0,
            grammar=grammar,
            tools=tools,
        )

    def encoder(self, request: ApiRequest, model: str, echo: Echo | None) -> "ChatEncoder":
        return ChatEncoder(request, model)


class ChatEncoder:
    """See `ResponseEncoder`."""

    def __init__(self, request: ApiRequest, model: str) -> None:
        self._output = CollectedOutput()
        self._scores = reading.integer(request.body, "prompt_logprobs")
        self._usage_asked = request.stream and includes_usage(request.body)
        self._id: JsonObject = {"id": f"chatcmpl-{request.request_id}"}
        self._made: JsonObject = {"created": int(time.time()), "model": model}

    def write(self, piece: Delta) -> Iterator[bytes]:
        if self._output.add(piece):
            yield self._chunk(_choice(piece.index, {"role": "assistant", "content": ""}))
        if piece.text or piece.logprobs:
            choice = _choice(piece.index, {"content": piece.text})
            if piece.logprobs:
                choice["logprobs"] = {"content": [_logprob(item) for item in piece.logprobs]}
            yield self._chunk(choice)
        if piece.calls:
            first = len(self._output.choices[piece.index].calls) - len(piece.calls)
            numbered: list[Json] = [
                {"index": at, **_call(self._id, piece.index, at, call)} for at, call in enumerate(piece.calls, first)
            ]
            yield self._chunk(_choice(piece.index, {"tool_calls": numbered}))
        if piece.finish_reason:
            yield self._chunk(_choice(piece.index, {}, _reason(self._output.choices[piece.index])))

    def _chunk(self, choice: JsonObject) -> bytes:
        head: JsonObject = {**self._id, "object": "chat.completion.chunk", **self._made}
        return event({**head, "choices": [choice], **({"usage": None} if self._usage_asked else {})})

    def end(self) -> Iterator[bytes]:
        if self._usage_asked:
            head: JsonObject = {**self._id, "object": "chat.completion.chunk", **self._made}
            yield event({**head, "choices": [], "usage": usage_of(self._output)})
        yield event(DONE)

    def whole(self) -> JsonObject:
        choices: list[Json] = [
            _whole(self._id, index, choice) for index, choice in sorted(self._output.choices.items())
        ]
        # vLLM has the prompt's scores beside the choices of a chat, and in each choice of a completion.
        beside: JsonObject = {} if self._scores is None else {"prompt_logprobs": scores_of(self._output, self._scores)}
        head: JsonObject = {**self._id, "object": "chat.completion", **self._made}
        return {**head, **beside, "choices": choices, "usage": usage_of(self._output)}


def usage_of(said: CollectedOutput) -> JsonObject:
    """Token counts in OpenAI's form."""
    return {
        "prompt_tokens": said.prompt_tokens,
        "completion_tokens": said.completion_tokens,
        "total_tokens": said.prompt_tokens + said.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": said.cached_tokens},
    }


def scores_of(said: CollectedOutput, count: int) -> list[Json]:
    """Scores of the prompt's tokens as vLLM reports them: by id, each with its `count` likeliest alternatives."""
    return [None, *(_scores(item, count) for item in said.prompt_logprobs)]


def _scores(item: TokenLogprob, count: int) -> JsonObject:
    found: JsonObject = {str(item.token): {"logprob": item.logprob, "rank": item.rank, "decoded_token": item.text}}
    for rank, (token, text, value) in enumerate(item.top[:count], 1):
        found.setdefault(str(token), {"logprob": value, "rank": rank, "decoded_token": text})
    return found


def _choice(index: int, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _whole(id: JsonObject, index: int, choice: CollectedChoice) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": choice.text}
    if choice.calls:
        calls: list[Json] = [_call(id, index, at, call) for at, call in enumerate(choice.calls)]
        message |= {"content": choice.text or None, "tool_calls": calls}
    whole: JsonObject = {"index": index, "message": message, "finish_reason": _reason(choice)}
    if choice.logprobs:
        whole["logprobs"] = {"content": [_logprob(item) for item in choice.logprobs]}
    return whole


def _reason(choice: CollectedChoice) -> str | None:
    return "tool_calls" if choice.calls and choice.finish_reason == "stop" else choice.finish_reason


def _call(id: JsonObject, index: int, at: int, call: ToolCall) -> JsonObject:
    """A call with an id of its own among all answers of a request."""
    function: JsonObject = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{id['id']}-{index}-{at}", "type": "function", "function": function}


def _logprob(item: TokenLogprob) -> JsonObject:
    top: list[Json] = [{"token": text, "logprob": value, "bytes": list(text.encode())} for _, text, value in item.top]
    return {"token": item.text, "logprob": item.logprob, "bytes": list(item.text.encode()), "top_logprobs": top}
