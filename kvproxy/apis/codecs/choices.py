import time
from collections.abc import Iterator

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.choices import includes_usage
from kvproxy.apis.codecs import request_fields as fields
from kvproxy.apis.codecs.collected_output import CollectedOutput
from kvproxy.apis.json import Json, JsonObject
from kvproxy.apis.sse import DONE, encode_event
from kvproxy.generation import TokenLogprob


class ChoicesEncoder:
    def __init__(self, request: ApiRequest, model: str, id: str, kind: str, chunk_kind: str) -> None:
        self._output = CollectedOutput()
        self._prompt_logprobs = fields.integer(request.body, "prompt_logprobs")
        self._includes_usage = request.stream and includes_usage(request.body)
        self._id = id
        created: JsonObject = {"created": int(time.time()), "model": model}
        self._head: JsonObject = {"id": id, "object": kind, **created}
        self._chunk_head: JsonObject = {"id": id, "object": chunk_kind, **created}

    def _chunk(self, choice: JsonObject) -> bytes:
        return encode_event(
            {**self._chunk_head, "choices": [choice], **({"usage": None} if self._includes_usage else {})}
        )

    def end(self) -> Iterator[bytes]:
        if self._includes_usage:
            yield encode_event({**self._chunk_head, "choices": [], "usage": usage_of(self._output)})
        yield encode_event(DONE)


def usage_of(output: CollectedOutput) -> JsonObject:
    details: JsonObject = {}
    if output.reasoning_tokens:
        details["completion_tokens_details"] = {"reasoning_tokens": output.reasoning_tokens}
    return {
        "prompt_tokens": output.prompt_tokens,
        "completion_tokens": output.completion_tokens,
        "total_tokens": output.prompt_tokens + output.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": output.cached_tokens},
        **details,
    }


def prompt_logprobs(output: CollectedOutput, count: int) -> list[Json]:
    return [None, *(_encode_prompt_logprob(item, count) for item in output.prompt_logprobs)]


def _encode_prompt_logprob(item: TokenLogprob, count: int) -> JsonObject:
    found: JsonObject = {str(item.token): {"logprob": item.logprob, "rank": item.rank, "decoded_token": item.text}}
    for rank, (token, text, value) in enumerate(item.top[:count], 1):
        found.setdefault(str(token), {"logprob": value, "rank": rank, "decoded_token": text})
    return found
