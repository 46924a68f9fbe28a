"""Is a warm answer the cold answer? The same greedy request twice, the second from a prefix cache that holds its prompt."""

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from kvproxy.apis.json import Json, JsonObject, as_object, field, loads, objects, text_of
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.errors import InvalidRequest, KvproxyError, ProxyUnreachable

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_UNCACHED = {"cache-control": "no-cache, no-store"}
_TOPICS = (
    "how a cache decides what to evict",
    "why a queue needs a bound",
    "what a hash chain proves",
    "when a proxy should say no",
    "how blocks of memory are shared",
    "what happens when a disk is full",
)
_SENTENCES = (
    "Every request is written down before it is answered.",
    "A block is evicted only when nobody holds it any more.",
    "The oldest entry goes first, unless somebody asked for it lately.",
    "What cannot be proven is counted, and never guessed.",
    "A lock is held for as short a time as possible.",
    "Two readers may share what neither of them changes.",
)


@dataclass(frozen=True, slots=True)
class Told:
    """One answer: its tokens (words where the server names none), and how much of the prompt it says it reused."""

    tokens: tuple[str, ...]
    prompt_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Pair:
    """The cold and the warm answer to one request; `number` counts the requests from 1."""

    number: int
    cold: Told
    warm: Told

    @property
    def proven(self) -> bool:
        """Whether the first reused nothing and the second did, by the server's own report."""
        return self.cold.cached_tokens == 0 and bool(self.warm.cached_tokens)

    @property
    def differs_at(self) -> int | None:
        """The first token that differs, from 0; None where the answers are equal."""
        if self.cold.tokens == self.warm.tokens:
            return None
        both = zip(self.cold.tokens, self.warm.tokens, strict=False)
        shorter = min(len(self.cold.tokens), len(self.warm.tokens))
        return next((place for place, (one, other) in enumerate(both) if one != other), shorter)


def usual_bodies(count: int, model: str, path: str, max_tokens: int, seed: int = 0) -> list[JsonObject]:
    """Requests of some hundred tokens each, no two of which begin alike."""
    chance = random.Random(seed)
    found: list[JsonObject] = []
    for number in range(count):
        told = " ".join(chance.choice(_SENTENCES) for _ in range(chance.randrange(8, 40)))
        text = f"Note {number}: {told}\n\nExplain {chance.choice(_TOPICS)}, in view of the note above."
        asked: JsonObject = {"model": model, "max_tokens": max_tokens}
        found.append(asked | ({"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}))
    return found


class Auditor:
    """Asks a server.

    Args:
        client: reaches it.
        flush: empty its prefix cache before each cold request, where it knows no salts.
    """

    def __init__(self, client: httpx.AsyncClient, *, flush: bool = False) -> None:
        self._client = client
        self._flush = flush

    async def run(
        self, bodies: Sequence[JsonObject], path: str, concurrency: int, progress: Callable[[float], None]
    ) -> list[Pair]:
        """Every request cold, and then warm.

        Args:
            concurrency: pairs at a time; what runs beside a request changes the batches that it is computed in.
            progress: told the share of the work that is done.

        Raises:
            ProxyUnreachable, InvalidRequest: the server does not answer, or refuses.
        """
        turn = asyncio.Semaphore(1 if self._flush else concurrency)
        done: list[Pair] = []

        async def one(number: int, body: JsonObject) -> None:
            async with turn:
                done.append(await self._pair(number, body, path))
                progress(len(done) / len(bodies))

        await asyncio.gather(*(one(number, body) for number, body in enumerate(bodies, 1)))
        return sorted(done, key=lambda pair: pair.number)

    async def _pair(self, number: int, body: JsonObject, path: str) -> Pair:
        if self._flush:
            await self._post("/reset_prefix_cache", {})
        salted: JsonObject = {**body, "temperature": 0, "stream": False, "cache_salt": uuid.uuid4().hex}
        cold = await self._ask(path, salted)
        return Pair(number, cold, await self._ask(path, salted))

    async def _ask(self, path: str, body: JsonObject) -> Told:
        scored: JsonObject = {**body, "logprobs": True if path == CHAT else 0}
        reply = await self._post(path, scored)
        if reply.status_code in (400, 422):
            # Servers that give no tokens are compared by words.
            reply = await self._post(path, body)
        if not reply.is_success:
            raise InvalidRequest(f"{reply.url} answered {reply.status_code}: {reply.text[:200]}")
        try:
            whole = as_object(loads(reply.content))
        except ValueError:
            raise KvproxyError(f"{reply.url} answered with what is no JSON object: give the URL of an engine") from None
        choice = next(iter(objects(whole.get("choices"))), {})
        prompt, cached = reported_reuse(whole) or (None, None)
        return Told(_tokens(choice), prompt, cached)

    async def _post(self, path: str, body: JsonObject) -> httpx.Response:
        try:
            return await self._client.post(path, json=body, headers=_UNCACHED)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise InvalidRequest(f"{self._client.base_url} is no URL ({error})") from None
        except httpx.HTTPError as error:
            raise ProxyUnreachable(
                f"{self._client.base_url} does not answer ({error or type(error).__name__}): give the engine's URL"
            ) from None


def _tokens(choice: JsonObject) -> tuple[str, ...]:
    scores = choice.get("logprobs")
    told: Json = field(scores, "tokens")
    if isinstance(told, list) and told:
        return tuple(str(token) for token in told)
    named = [str(item.get("token")) for item in objects(field(scores, "content"))]
    if named:
        return tuple(named)
    text = text_of(field(choice.get("message"), "content")) or choice.get("text")
    return tuple(str(text or "").split(" "))
