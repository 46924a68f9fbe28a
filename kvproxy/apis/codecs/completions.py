from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.choices import merge_logprobs
from kvproxy.apis.codecs import request_fields as fields
from kvproxy.apis.codecs.choices import ChoicesEncoder, prompt_logprobs, usage_of
from kvproxy.apis.codecs.codec import DecodedRequest, Echo, PromptInput
from kvproxy.apis.codecs.collected_output import CollectedChoice
from kvproxy.apis.codecs.output_formats import read_json_format
from kvproxy.apis.field_checks import check_integer
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_object
from kvproxy.errors import InvalidRequest
from kvproxy.generation import Delta, SamplingParams, TokenLogprob

_DEFAULT_TOKENS = 16


def decode_prompt(body: JsonMap) -> PromptInput:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return prompt
    ids = [token for token in prompt if type(token) is int] if isinstance(prompt, list) else []
    if not isinstance(prompt, list) or not ids or len(ids) < len(prompt):
        raise InvalidRequest("the prompt must be one text, or a list of token ids", param="prompt")
    return tuple(ids)


def decode(body: JsonMap, defaults: SamplingParams) -> DecodedRequest:
    fields.check_supported(body)
    check_integer(body, "logprobs", least=0, most=20)
    limit = fields.integer(body, "max_tokens")
    logprobs = fields.integer(body, "logprobs")
    # An echo with log-probabilities scores the prompt as well.
    scores = [fields.integer(body, "prompt_logprobs"), logprobs if body.get("echo") else None]
    request = fields.choices_request(
        body,
        decode_prompt(body),
        defaults,
        max_tokens=_DEFAULT_TOKENS if limit is None else limit,
        logprobs=logprobs,
        prompt_logprobs=max((count for count in scores if count is not None), default=None),
    )
    grammar = read_json_format(body.get("response_format"), "response_format")
    return replace(request, echo=bool(body.get("echo")), grammar=grammar)


class CompletionsEncoder(ChoicesEncoder):
    def __init__(self, request: ApiRequest, model: str, echo: Echo | None) -> None:
        super().__init__(request, model, f"cmpl-{request.request_id}", "text_completion", "text_completion")
        self._echo = echo
        self._logprobs = fields.integer(request.body, "logprobs")
        self._offsets: dict[int, int] = {}

    def write(self, piece: Delta) -> Iterator[bytes]:
        if self._output.add(piece) and self._echo is not None:
            self._offsets[piece.index] = len(self._echo.text)
            yield self._chunk(_encode_choice(piece.index, self._echo.text, self._echo_logprobs(self._echo)))
        logprobs: Json = None
        if piece.logprobs:
            offset = self._offsets.get(piece.index, 0)
            logprobs = _encode_logprobs(piece.logprobs, offset, self._logprobs)
            self._offsets[piece.index] = offset + sum(len(item.text) for item in piece.logprobs)
        if piece.text or piece.finish_reason or logprobs:
            yield self._chunk(_encode_choice(piece.index, piece.text, logprobs, piece.finish_reason))

    def _echo_logprobs(self, echo: Echo) -> Json:
        if self._logprobs is None:
            return None
        found: JsonObject = {
            "tokens": [echo.first_token],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": [0],
        }
        merge_logprobs(found, _encode_logprobs(self._output.prompt_logprobs, len(echo.first_token), self._logprobs))
        return found

    def response(self) -> JsonObject:
        choices: list[Json] = [
            self._complete_choice(index, choice) for index, choice in sorted(self._output.choices.items())
        ]
        return {**self._head, "choices": choices, "usage": usage_of(self._output)}

    def _complete_choice(self, index: int, choice: CollectedChoice) -> JsonObject:
        echo = self._echo
        before = "" if echo is None else echo.text
        complete = _encode_choice(index, before + choice.text, None, choice.finish_reason)
        if self._logprobs is not None:
            found = as_object({} if echo is None else self._echo_logprobs(echo))
            merge_logprobs(found, _encode_logprobs(choice.logprobs, len(before), self._logprobs))
            complete["logprobs"] = found
        if self._prompt_logprobs is not None:
            complete["prompt_logprobs"] = prompt_logprobs(self._output, self._prompt_logprobs)
        return complete


def _encode_choice(index: int, text: str, logprobs: Json, finish_reason: str | None = None) -> JsonObject:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _encode_logprobs(items: Sequence[TokenLogprob], offset: int, count: int | None) -> JsonObject:
    offsets: list[Json] = []
    for item in items:
        offsets.append(offset)
        offset += len(item.text)
    return {
        "tokens": [item.text for item in items],
        "token_logprobs": [item.logprob for item in items],
        "top_logprobs": [{text: value for _, text, value in item.top[:count]} for item in items],
        "text_offset": offsets,
    }
