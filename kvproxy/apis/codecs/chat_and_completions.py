"""Converts OpenAI's chats and completions to prompts, and generated tokens to their responses."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.chat_completions_embeddings import includes_usage, merge_logprobs
from kvproxy.apis.codecs import request_fields as fields
from kvproxy.apis.codecs.codec import CollectedChoice, CollectedOutput, Conversation, DecodedRequest, Echo, PromptInput
from kvproxy.apis.codecs.generation import Delta, SamplingParams, TokenLogprob, ToolCall
from kvproxy.apis.codecs.ignored_fields import ignored_fields
from kvproxy.apis.field_checks import check_integer
from kvproxy.apis.json import Json, JsonMap, JsonObject, objects
from kvproxy.apis.key_fields import CHAT, COMPLETIONS
from kvproxy.apis.sse import DONE, encode_event
from kvproxy.errors import InvalidRequest

_DEFAULT_COMPLETION_TOKENS = 16


def decode_chat_prompt(body: JsonMap) -> Conversation:
    messages = tuple(fields.with_text_content(message) for message in objects(body.get("messages")))
    return Conversation(messages, tuple(objects(body.get("tools"))))


def decode_chat(body: JsonMap, defaults: SamplingParams) -> DecodedRequest:
    fields.check_supported(body)
    prompt = decode_chat_prompt(body)
    grammar, tools = fields.read_constraints(body, prompt.tools, body.get("response_format"), "response_format")
    if body.get("echo"):
        raise InvalidRequest("echo is a field of /v1/completions: remove it", param="echo")
    limit = fields.read_integer(body, "max_completion_tokens")
    request = _decode_choices_request(
        body,
        prompt,
        defaults,
        max_tokens=fields.read_integer(body, "max_tokens") if limit is None else limit,
        logprobs=(fields.read_integer(body, "top_logprobs") or 0) if body.get("logprobs") else None,
        prompt_logprobs=fields.read_integer(body, "prompt_logprobs"),
    )
    return replace(request, grammar=grammar, tools=tools, ignored=ignored_fields(body, CHAT, fields.UNSUPPORTED))


def decode_completion_prompt(body: JsonMap) -> PromptInput:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return prompt
    ids = [token for token in prompt if type(token) is int] if isinstance(prompt, list) else []
    if not isinstance(prompt, list) or not ids or len(ids) < len(prompt):
        raise InvalidRequest("the prompt must be one text, or a list of token ids", param="prompt")
    return tuple(ids)


def decode_completion(body: JsonMap, defaults: SamplingParams) -> DecodedRequest:
    fields.check_supported(body)
    check_integer(body, "logprobs", least=0, most=20)
    limit, logprobs = fields.read_integer(body, "max_tokens"), fields.read_integer(body, "logprobs")
    # An echo with log-probabilities scores the prompt as well.
    scores = [fields.read_integer(body, "prompt_logprobs"), logprobs if body.get("echo") else None]
    request = _decode_choices_request(
        body,
        decode_completion_prompt(body),
        defaults,
        max_tokens=_DEFAULT_COMPLETION_TOKENS if limit is None else limit,
        logprobs=logprobs,
        prompt_logprobs=max((count for count in scores if count is not None), default=None),
    )
    grammar = fields.read_json_format(body.get("response_format"), "response_format")
    ignored = ignored_fields(body, COMPLETIONS, fields.UNSUPPORTED)
    return replace(request, echo=bool(body.get("echo")), grammar=grammar, ignored=ignored)


def _decode_choices_request(
    body: JsonMap, prompt: PromptInput, defaults: SamplingParams, **sampling: int | None
) -> DecodedRequest:
    common = {name: fields.read_integer(body, name) for name in ("top_k", "seed", "n")}
    stop, ignore_eos = fields.read_strings(body, "stop"), bool(body.get("ignore_eos"))
    return fields.base_request(body, prompt, defaults, stop=stop, ignore_eos=ignore_eos, **common, **sampling)


class _ChoicesEncoder:
    def __init__(self, request: ApiRequest, model: str, id: str, kind: str, chunk_kind: str) -> None:
        self._output = CollectedOutput()
        self._prompt_logprobs = fields.read_integer(request.body, "prompt_logprobs")
        self._includes_usage = request.stream and includes_usage(request.body)
        self._id = id
        created: JsonObject = {"created": int(time.time()), "model": model}
        self._head: JsonObject = {"id": id, "object": kind, **created}
        self._chunk_head: JsonObject = {"id": id, "object": chunk_kind, **created}
        if self._includes_usage:
            self._chunk_head["usage"] = None

    def _chunk(self, choice: JsonObject) -> bytes:
        return encode_event({**self._chunk_head, "choices": [choice]})

    def end(self) -> Iterator[bytes]:
        if self._includes_usage:
            yield encode_event({**self._chunk_head, "choices": [], "usage": self._usage()})
        yield encode_event(DONE)

    def response(self) -> JsonObject:
        choices = [self._complete_choice(index, choice) for index, choice in sorted(self._output.choices.items())]
        return {**self._head, "choices": list[Json](choices), "usage": self._usage()}

    def _complete_choice(self, index: int, choice: CollectedChoice) -> JsonObject:
        raise NotImplementedError

    def _usage(self) -> JsonObject:
        output = self._output
        usage: JsonObject = {
            "prompt_tokens": output.prompt_tokens,
            "completion_tokens": output.completion_tokens,
            "total_tokens": output.prompt_tokens + output.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": output.cached_tokens},
        }
        if output.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": output.reasoning_tokens}
        return usage

    def _prompt_logprobs_field(self) -> JsonObject:
        count = self._prompt_logprobs
        if count is None:
            return {}
        return {
            "prompt_logprobs": [None, *(_encode_prompt_logprob(item, count) for item in self._output.prompt_logprobs)]
        }


def _encode_prompt_logprob(item: TokenLogprob, count: int) -> JsonObject:
    logprobs: JsonObject = {str(item.token): {"logprob": item.logprob, "rank": item.rank, "decoded_token": item.text}}
    for rank, (token, text, value) in enumerate(item.top[:count], 1):
        logprobs.setdefault(str(token), {"logprob": value, "rank": rank, "decoded_token": text})
    return logprobs


class ChatEncoder(_ChoicesEncoder):
    def __init__(self, request: ApiRequest, model: str, echo: Echo | None) -> None:
        id = f"chatcmpl-{request.request_id}"
        super().__init__(request, model, id, "chat.completion", "chat.completion.chunk")

    def write(self, piece: Delta) -> Iterator[bytes]:
        if self._output.add(piece):
            yield self._delta(piece.index, {"role": "assistant", "content": ""})
        if piece.text or piece.reasoning or piece.logprobs:
            delta: JsonObject = {"reasoning_content": piece.reasoning} if piece.reasoning else {}
            if piece.text or not piece.reasoning:
                delta["content"] = piece.text
            yield self._delta(piece.index, delta, logprobs=_encode_chat_logprobs(piece.logprobs))
        choice = self._output.choices[piece.index]
        if piece.calls:
            calls = self._encode_calls(piece.index, choice)[-len(piece.calls) :]
            first = len(choice.calls) - len(calls)
            numbered: list[Json] = [{"index": place, **call} for place, call in enumerate(calls, first)]
            yield self._delta(piece.index, {"tool_calls": numbered})
        if piece.finish_reason:
            yield self._delta(piece.index, {}, finish_reason=_chat_finish_reason(choice))

    def _delta(self, index: int, delta: JsonObject, logprobs: Json = None, finish_reason: str | None = None) -> bytes:
        return self._chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason})

    def response(self) -> JsonObject:
        # vLLM returns the prompt's scores outside the choices of a chat, but in each choice of a completion.
        return {**super().response(), **self._prompt_logprobs_field()}

    def _complete_choice(self, index: int, choice: CollectedChoice) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": choice.text}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = list[Json](self._encode_calls(index, choice))
        complete: JsonObject = {"index": index, "message": message, "finish_reason": _chat_finish_reason(choice)}
        return {**complete, "logprobs": _encode_chat_logprobs(choice.logprobs)} if choice.logprobs else complete

    def _encode_calls(self, index: int, choice: CollectedChoice) -> list[JsonObject]:
        return [
            {"id": f"call_{self._id}-{index}-{place}", "type": "function", "function": _encode_function(call)}
            for place, call in enumerate(choice.calls)
        ]


def _encode_function(call: ToolCall) -> JsonObject:
    return {"name": call.name, "arguments": call.arguments}


def _chat_finish_reason(choice: CollectedChoice) -> str | None:
    return "tool_calls" if choice.calls and choice.finish_reason == "stop" else choice.finish_reason


def _encode_chat_logprobs(items: Sequence[TokenLogprob]) -> Json:
    return {"content": [_encode_chat_logprob(item) for item in items]} if items else None


def _encode_chat_logprob(item: TokenLogprob) -> JsonObject:
    top: list[Json] = [{"token": text, "logprob": value, "bytes": list(text.encode())} for _, text, value in item.top]
    return {"token": item.text, "logprob": item.logprob, "bytes": list(item.text.encode()), "top_logprobs": top}


class CompletionsEncoder(_ChoicesEncoder):
    def __init__(self, request: ApiRequest, model: str, echo: Echo | None) -> None:
        super().__init__(request, model, f"cmpl-{request.request_id}", "text_completion", "text_completion")
        self._echo = echo
        self._logprobs = fields.read_integer(request.body, "logprobs")
        self._offsets: dict[int, int] = {}

    def write(self, piece: Delta) -> Iterator[bytes]:
        if self._output.add(piece) and self._echo is not None:
            self._offsets[piece.index] = len(self._echo.text)
            yield self._chunk(_encode_text(piece.index, self._echo.text, self._echo_logprobs() or None))
        logprobs: Json = None
        if piece.logprobs:
            offset = self._offsets.get(piece.index, 0)
            logprobs = self._encode_logprobs(piece.logprobs, offset)
            self._offsets[piece.index] = offset + sum(len(item.text) for item in piece.logprobs)
        if piece.text or piece.finish_reason or logprobs:
            yield self._chunk(_encode_text(piece.index, piece.text, logprobs, piece.finish_reason))

    def _echo_logprobs(self) -> JsonObject:
        echo = self._echo
        if self._logprobs is None or echo is None:
            return {}
        echoed: JsonObject = {
            "tokens": [echo.first_token],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": [0],
        }
        merge_logprobs(echoed, self._encode_logprobs(self._output.prompt_logprobs, len(echo.first_token)))
        return echoed

    def _complete_choice(self, index: int, choice: CollectedChoice) -> JsonObject:
        before = "" if self._echo is None else self._echo.text
        logprobs: Json = None
        if self._logprobs is not None:
            logprobs = self._echo_logprobs()
            merge_logprobs(logprobs, self._encode_logprobs(choice.logprobs, len(before)))
        complete = _encode_text(index, before + choice.text, logprobs, choice.finish_reason)
        return {**complete, **self._prompt_logprobs_field()}

    def _encode_logprobs(self, items: Sequence[TokenLogprob], offset: int) -> JsonObject:
        offsets: list[Json] = []
        for item in items:
            offsets.append(offset)
            offset += len(item.text)
        return {
            "tokens": [item.text for item in items],
            "token_logprobs": [item.logprob for item in items],
            "top_logprobs": [{text: value for _, text, value in item.top[: self._logprobs]} for item in items],
            "text_offset": offsets,
        }


def _encode_text(index: int, text: str, logprobs: Json, finish_reason: str | None = None) -> JsonObject:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
