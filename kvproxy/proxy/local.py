"""The embedded engine as a backend: OpenAI requests in, OpenAI objects and chunks out."""

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson

from kvproxy.engine.worker import EngineWorker
from kvproxy.errors import InvalidRequest, ModelNotFound, NotFound
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.proxy.backend import Call, Reply
from kvproxy.proxy.chunks import ChunkWriter, Echo
from kvproxy.proxy.dialects.fields import check_integer
from kvproxy.proxy.sse import DONE, EventReader, event
from kvproxy.proxy.translate import TRANSLATORS
from kvproxy.proxy.translate.translator import Job

_REFUSED = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "best_of": 1,
    "suffix": "",
}
"""Fields that would change the answer and that the engine does not have, with the value that means "not used"."""
_MOST_ANSWERS = 128


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
            NotFound: the engine does not speak this API.
            ModelNotFound: the request names another model.
            InvalidRequest: it asks for what the engine cannot do.
        """
        if call.endpoint == "embeddings":
            raise NotFound("the embedded engine makes no embeddings: use --upstream")
        translator = TRANSLATORS.get(call.endpoint)
        asked = call if translator is None else replace(call, endpoint="chat", body=translator.to_chat(call.body))
        request = self.request(asked)
        pieces = self.worker.generate(request)
        first = await anext(pieces)
        reply = Reply(200, [], _nothing())
        usage = first.usage
        tiers = f" tiers={usage.tier_tokens}" if usage.tier_tokens else ""
        reply.detail = f"prefix {usage.cached_tokens}/{usage.prompt_tokens}{tiers}"
        reply.close = pieces.aclose  # type: ignore[attr-defined]
        chunks = ChunkWriter(asked, self.worker.name, self._echo(asked, request)).chunks(first, pieces, reply)
        if translator is None:
            events = _openai(chunks)
        else:
            events = translator.events(
                chunks, Job(call, self.worker.name, usage.prompt_tokens, usage.cached_tokens), reply
            )
        if call.stream:
            reply.headers = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")]
            reply.chunks = events
        else:
            reply.headers = [("content-type", "application/json")]
            reply.chunks = _whole(call, events, reply)
            reply.at_once = True
        return reply

    def request(self, call: Call) -> GenerationRequest:
        """The engine's form of a chat or completion request."""
        body = call.body
        if body["model"] != self.worker.name:
            raise ModelNotFound(
                f"model {body['model']!r} is not served here: use {self.worker.name!r}, or start with --model",
                param="model",
            )
        for name, unused in _REFUSED.items():
            if body.get(name) not in (None, unused):
                raise InvalidRequest(f"the embedded engine has no {name}: leave it out, or use --upstream", param=name)
        _check_sampling(call)
        # A client may send the same request id twice; the engine's ids must be unique.
        id = f"{call.request_id}.{next(self._numbers)}"
        return GenerationRequest(
            id,
            tuple(self.tokens(call)),
            sampling_params(call, self.worker.sampling),
            salt=_salt(body),
            priority=_priority(call),
            tenant=call.tenant,
            queue_priority=body.get("priority") or 0,
        )

    def _echo(self, call: Call, request: GenerationRequest) -> Echo | None:
        """The prompt for the answer to begin with, where that is asked for."""
        if not call.body.get("echo"):
            return None
        name, prompt = self.worker.tokenizer.token_text, call.body["prompt"]
        text = prompt if isinstance(prompt, str) else self.worker.tokenizer.decode(prompt)
        return Echo(text, name(request.tokens[0]))

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


def sampling_params(call: Call, recommended: SamplingParams) -> SamplingParams:
    """How a request wants its tokens chosen; where it does not say, as the model recommends."""
    body = call.body
    stop = body.get("stop") or ()
    logprobs = body.get("logprobs")
    if call.endpoint == "chat":
        logprobs = (body.get("top_logprobs") or 0) if logprobs else None
    temperature = _number(body.get("temperature"), recommended.temperature)
    return SamplingParams(
        max_tokens=_max_tokens(call),
        # Dividing by less than this overflows, and is greedy already.
        temperature=temperature if temperature >= 1e-5 else 0.0,
        top_p=_number(body.get("top_p"), recommended.top_p),
        top_k=int(_number(body.get("top_k"), recommended.top_k)),
        seed=body.get("seed"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        logprobs=None if logprobs is None else int(logprobs),
        n=body.get("n") or 1,
        ignore_eos=bool(body.get("ignore_eos")),
        prompt_logprobs=_prompt_logprobs(body),
    )


def _number(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)


def _max_tokens(call: Call) -> int | None:
    given = (call.body.get(name) for name in ("max_completion_tokens", "max_tokens"))
    return next((limit for limit in given if limit is not None), None if call.endpoint == "chat" else 16)


def _prompt_logprobs(body: dict[str, Any]) -> int | None:
    """Alternatives to report with each token of the prompt: asked for directly, or by an echo with log-probabilities."""
    asked = [body.get("prompt_logprobs"), body.get("logprobs") if body.get("echo") else None]
    return max((count for count in asked if count is not None), default=None)


def _salt(body: dict[str, Any]) -> str | None:
    salt = body.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise InvalidRequest("cache_salt is a text", param="cache_salt")
    return salt


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def _openai(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield event(chunk)
    yield event(DONE)


async def _whole(call: Call, events: AsyncIterator[bytes], reply: Reply) -> AsyncIterator[bytes]:
    """A stream put together to one JSON body."""
    reader, assembler = EventReader(), call.dialect.assembler()
    async for part in events:
        for data in reader.push(part):
            assembler.push(data)
    yield orjson.dumps(assembler.result(reply.usage))


def _priority(call: Call) -> int:
    """What the header x-kvproxy-priority says: blocks of a higher one outlive those of a lower one."""
    text = call.headers.get("x-kvproxy-priority", "0").strip()
    if not (text.isdecimal() and int(text) <= 9):
        raise InvalidRequest(f"x-kvproxy-priority is a whole number from 0 to 9, not {text!r}")
    return int(text)


def _check_sampling(call: Call) -> None:
    """Refuse what would fail inside the engine, where it takes other requests down with it."""
    check_integer(call.body, "top_k", least=-1)
    check_integer(call.body, "priority")
    check_integer(call.body, "n", least=1, most=_MOST_ANSWERS)
    check_integer(call.body, "prompt_logprobs", least=0, most=20)
    if call.stream and call.body.get("prompt_logprobs") is not None:
        raise InvalidRequest("prompt_logprobs come with whole answers only: leave out stream", param="prompt_logprobs")
    if call.body.get("echo") and call.endpoint != "completions":
        raise InvalidRequest("echo belongs to /v1/completions: leave it out", param="echo")
    if call.endpoint == "completions":
        check_integer(call.body, "logprobs", least=0, most=20)
