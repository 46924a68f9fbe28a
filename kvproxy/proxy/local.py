"""The embedded engine as a backend: OpenAI requests in, OpenAI objects and chunks out."""

import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson

from kvproxy.engine.request import Delta, GenerationRequest, SamplingParams, TokenLogprob
from kvproxy.engine.worker import EngineWorker
from kvproxy.errors import InvalidRequest, ModelNotFound
from kvproxy.proxy.backend import Call, Reply
from kvproxy.proxy.sse import DONE, Assembler, event
from kvproxy.proxy.validate import check_sampling

_REFUSED = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "best_of": 1,
    "echo": False,
    "suffix": "",
}
"""Fields that would change the answer and that the engine does not have, with the value that means "not used"."""


class LocalBackend:
    """Answers from the embedded engine."""

    def __init__(self, worker: EngineWorker) -> None:
        self.worker = worker
        self._numbers = itertools.count()
        self.name = f"local:{worker.name}"

    async def start(self) -> None:
        await self.worker.start()

    async def close(self) -> None:
        await self.worker.stop()

    async def models(self) -> dict[str, Any]:
        model = {"id": self.worker.name, "object": "model", "created": 0, "owned_by": "kvproxy"}
        return {"object": "list", "data": [model | {"max_model_len": self.worker.max_model_len}]}

    async def send(self, call: Call) -> Reply:
        """Generate; returns with the first piece, when it is known how much of the prompt was cached.

        Raises:
            ModelNotFound: the request names another model.
            InvalidRequest: it asks for what the engine cannot do.
        """
        request = self.request(call)
        pieces = self.worker.generate(request)
        first = await anext(pieces)
        reply = Reply(200, [], _nothing())
        usage = first.usage
        reply.detail = f"prefix {usage.cached_tokens}/{usage.prompt_tokens}"
        reply.close = pieces.aclose  # type: ignore[attr-defined]
        writer = _Writer(call, self.worker.name)
        events = writer.events(first, pieces, reply)
        if call.stream:
            reply.headers = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")]
            reply.chunks = events
        else:
            reply.headers = [("content-type", "application/json")]
            reply.chunks = _whole(events, reply)
        return reply

    def request(self, call: Call) -> GenerationRequest:
        """The engine's form of a request."""
        body = call.body
        if body["model"] != self.worker.name:
            raise ModelNotFound(
                f"model {body['model']!r} is not served here: use {self.worker.name!r}, or start with --model",
                param="model",
            )
        for name, unused in _REFUSED.items():
            if body.get(name) not in (None, unused):
                raise InvalidRequest(f"the embedded engine has no {name}: leave it out, or use --upstream", param=name)
        check_sampling(call.endpoint, body)
        # A client may send the same request id twice; the engine's ids must be unique.
        id = f"{call.request_id}.{next(self._numbers)}"
        return GenerationRequest(id, tuple(self.tokens(call)), sampling_params(call), salt=_salt(body))

    def tokens(self, call: Call) -> list[int]:
        """The prompt in token ids."""
        if call.endpoint == "chat":
            return self.worker.tokenizer.chat(call.body["messages"], call.body.get("tools"))
        prompt = call.body["prompt"]
        if isinstance(prompt, str):
            return self.worker.tokenizer.encode(prompt)
        if isinstance(prompt, list) and all(
            type(token) is int and 0 <= token < self.worker.vocab_size for token in prompt
        ):
            return prompt
        raise InvalidRequest(
            "the embedded engine takes one prompt a request: a text, or ids of tokens that it has", param="prompt"
        )


def sampling_params(call: Call) -> SamplingParams:
    """How a request wants its tokens chosen."""
    body = call.body
    stop = body.get("stop") or ()
    logprobs = body.get("logprobs")
    if call.endpoint == "chat":
        logprobs = (body.get("top_logprobs") or 0) if logprobs else None
    temperature, top_p = body.get("temperature"), body.get("top_p")
    return SamplingParams(
        max_tokens=body.get("max_completion_tokens")
        or body.get("max_tokens")
        or (16 if call.endpoint != "chat" else None),
        # Dividing by less than this overflows, and is greedy already.
        temperature=1.0 if temperature is None else float(temperature) if temperature >= 1e-5 else 0.0,
        top_p=1.0 if top_p is None else float(top_p),
        top_k=int(body.get("top_k") or 0),
        seed=body.get("seed"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        logprobs=None if logprobs is None else int(logprobs),
        n=body.get("n") or 1,
        ignore_eos=bool(body.get("ignore_eos")),
    )


def _salt(body: dict[str, Any]) -> str | None:
    salt = body.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise InvalidRequest("cache_salt is a text", param="cache_salt")
    return salt


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def _whole(events: AsyncIterator[bytes], reply: Reply) -> AsyncIterator[bytes]:
    """A stream put together to one JSON body."""
    assembler = Assembler()
    async for data in events:
        assembler.push(data[6:-2])
    yield orjson.dumps(assembler.result(reply.usage))


class _Writer:
    """Writes one request's pieces as OpenAI chunks."""

    def __init__(self, call: Call, model: str) -> None:
        self._chat = call.endpoint == "chat"
        self._usage_asked = call.stream and call.include_usage
        prefix, kind = ("chatcmpl", "chat.completion.chunk") if self._chat else ("cmpl", "text_completion")
        self._head = {
            "id": f"{prefix}-{call.request_id}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        } | ({"usage": None} if self._usage_asked else {})
        self._begun: set[int] = set()
        self._offset: dict[int, int] = {}

    async def events(self, first: Delta, pieces: AsyncIterator[Delta], reply: Reply) -> AsyncIterator[bytes]:
        """Server-sent events up to and with [DONE]; leaves the token counts in the reply."""
        generated: dict[int, int] = {}
        delta: Delta | None = first
        while delta is not None:
            generated[delta.index] = delta.usage.completion_tokens
            for choice in self._choices(delta):
                yield event(self._head | {"choices": [choice]})
            delta = await anext(pieces, None)
        usage = first.usage
        total = sum(generated.values())
        reply.usage = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": total,
            "total_tokens": usage.prompt_tokens + total,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
        if self._usage_asked:
            yield event(self._head | {"choices": [], "usage": reply.usage})
        yield event(DONE)

    def _choices(self, delta: Delta) -> list[dict[str, Any]]:
        if not self._chat:
            logprobs = self._text_logprobs(delta) if delta.logprobs else None
            if not delta.text and not delta.finish_reason and not logprobs:
                return []
            reason = delta.finish_reason
            return [{"index": delta.index, "text": delta.text, "logprobs": logprobs, "finish_reason": reason}]
        choices: list[dict[str, Any]] = []
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            choices.append(_chat_choice(delta.index, {"role": "assistant", "content": ""}))
        if delta.text or delta.logprobs:
            choice = _chat_choice(delta.index, {"content": delta.text})
            if delta.logprobs:
                choice["logprobs"] = {"content": [_logprob(item) for item in delta.logprobs]}
            choices.append(choice)
        if delta.finish_reason:
            choices.append(_chat_choice(delta.index, {}, delta.finish_reason))
        return choices

    def _text_logprobs(self, delta: Delta) -> dict[str, Any]:
        offsets = []
        for item in delta.logprobs:
            offset = self._offset.get(delta.index, 0)
            offsets.append(offset)
            self._offset[delta.index] = offset + len(item.text)
        return {
            "tokens": [item.text for item in delta.logprobs],
            "token_logprobs": [item.logprob for item in delta.logprobs],
            "top_logprobs": [{text: value for _, text, value in item.top} for item in delta.logprobs],
            "text_offset": offsets,
        }


def _chat_choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _logprob(item: TokenLogprob) -> dict[str, Any]:
    top = [{"token": text, "logprob": value, "bytes": list(text.encode())} for _, text, value in item.top]
    return {"token": item.text, "logprob": item.logprob, "bytes": list(item.text.encode()), "top_logprobs": top}
