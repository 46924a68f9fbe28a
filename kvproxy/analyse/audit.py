"""Compares an engine's response to an uncached ("cold") prompt with its response to the same, cached ("warm") prompt."""

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx

from kvproxy.apis.json import JsonObject, as_object, field, loads, objects, text_of
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.errors import InvalidRequest, KvproxyError, ProxyUnreachable

_PATH = "/v1/chat/completions"
_NEXT: JsonObject = {"role": "user", "content": "Say this in other words."}
_UNCACHED = {"cache-control": "no-cache, no-store"}
_SENTENCES = (
    "Every request is written down before it is answered.",
    "A block is evicted only when no request uses it.",
    "The oldest entry is evicted first, unless a client requested it recently.",
    "A lock is held for as short a time as possible.",
)


@dataclass(frozen=True, slots=True)
class AuditedResponse:
    """Output tokens of a response (or its words, if the server returns no tokens), and the reported reuse of its prompt."""

    tokens: tuple[str, ...]
    prompt_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class AuditedPair:
    """The responses to a request with a cold and with a warm prefix cache. `number` counts the requests from 1.

    If `Auditor` compares histories, `cold` follows the engine's own answer, and `warm` the answer without reasoning and spaces.
    """

    number: int
    cold: AuditedResponse
    warm: AuditedResponse

    @property
    def is_reuse_reported(self) -> bool:
        """Whether the server reported reuse for the warm prompt, and none for the cold prompt. Other pairs do not count."""
        return self.cold.cached_tokens == 0 and bool(self.warm.cached_tokens)

    @property
    def first_different_token(self) -> int | None:
        """The index of the first different token; None if the responses are equal."""
        cold, warm = self.cold.tokens, self.warm.tokens
        return None if cold == warm else common_prefix_length(cold, warm)


def generate_bodies(count: int, model: str, max_tokens: int) -> list[JsonObject]:
    """Return request bodies of a few hundred tokens without a common prefix."""
    generator = random.Random(0)
    bodies: list[JsonObject] = []
    for number in range(count):
        text = f"Note {number}: {' '.join(generator.choices(_SENTENCES, k=generator.randrange(8, 40)))}\n\nExplain the note."
        bodies.append({"model": model, "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]})
    return bodies


class Auditor:
    """Sends each request twice: a new `cache_salt` makes the prefix cache cold (empty), and the first request makes it warm.

    Args:
        flush: empty the prefix cache before each cold request, for servers that ignore `cache_salt`.
        histories: continue each chat twice instead: after the original answer, and after the answer without reasoning and
            with other white space.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, flush: bool, histories: bool) -> None:
        timeout = httpx.Timeout(600.0, connect=3.0)
        self._client = httpx.AsyncClient(base_url=url, timeout=timeout, headers=headers)
        self._flush = flush
        self._histories = histories

    async def run(
        self, bodies: Sequence[JsonObject], concurrency: int, progress: Callable[[float], None]
    ) -> list[AuditedPair]:
        """Return the responses to each request, in order. At most `concurrency` pairs of requests are in flight."""
        limit = asyncio.Semaphore(1 if self._flush else concurrency)
        done: list[AuditedPair] = []

        async def one(number: int, body: JsonObject) -> None:
            async with limit:
                done.append(await self._audit_request(number, body))
                progress(len(done) / len(bodies))

        async with self._client:
            await asyncio.gather(*(one(number, body) for number, body in enumerate(bodies, 1)))
        return sorted(done, key=lambda pair: pair.number)

    async def _audit_request(self, number: int, body: JsonObject) -> AuditedPair:
        if self._flush:
            await self._post("/reset_prefix_cache", {})
        salted: JsonObject = {**body, "temperature": 0, "stream": False, "cache_salt": uuid.uuid4().hex}
        cold, answer = await self._complete(salted)
        if not self._histories:
            return AuditedPair(number, cold, (await self._complete(salted))[0])
        changed: JsonObject = {"role": "assistant", "content": f"{str(answer.get('content') or '').strip()} \n"}
        earlier = objects(body.get("messages"))
        chats: list[JsonObject] = [{**salted, "messages": [*earlier, message, _NEXT]} for message in (answer, changed)]
        return AuditedPair(number, *[(await self._complete(chat))[0] for chat in chats])

    async def _complete(self, body: JsonObject) -> tuple[AuditedResponse, JsonObject]:
        reply = await self._post(_PATH, {**body, "logprobs": True})
        if reply.status_code in (400, 422):
            # The server may not support logprobs: compare words.
            reply = await self._post(_PATH, body)
        if not reply.is_success:
            raise InvalidRequest(f"{reply.url} answered {reply.status_code}: {reply.text[:200]}")
        try:
            whole = as_object(loads(reply.content))
        except ValueError:
            raise KvproxyError(f"{reply.url} did not return a JSON object: give the URL of an engine") from None
        choice = next(iter(objects(whole.get("choices"))), {})
        reuse = reported_reuse(whole)
        counts = (None, None) if reuse is None else (reuse.prompt_tokens, reuse.cached_tokens)
        return AuditedResponse(_output_tokens(choice), *counts), as_object(choice.get("message") or {})

    async def _post(self, path: str, body: JsonObject) -> httpx.Response:
        try:
            return await self._client.post(path, json=body, headers=_UNCACHED)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise InvalidRequest(
                f"{self._client.base_url} is not a URL ({error}): use a form such as http://127.0.0.1:8000"
            ) from None
        except httpx.HTTPError as error:
            raise ProxyUnreachable(
                f"{self._client.base_url} does not answer ({error or type(error).__name__}): give the engine's URL"
            ) from None


def _output_tokens(choice: JsonObject) -> tuple[str, ...]:
    tokens = [str(item.get("token")) for item in objects(field(choice.get("logprobs"), "content"))]
    return tuple(tokens or (text_of(field(choice.get("message"), "content")) or "").split(" "))
