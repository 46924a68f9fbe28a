"""Compares new responses with cached responses to similar questions. The learned policy learns from the results."""

import asyncio
import contextlib
import logging
import re
from collections import Counter

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, dumps, loads
from kvproxy.backends.protocol import Backend
from kvproxy.errors import KvproxyError
from kvproxy.flow.backend_response import fetch_response
from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.policies.learned.answer_classes import a_few_words_differ, text_digest
from kvproxy.index.search.lookup_result import Lookup
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.settings import CacheSettings

_INSTRUCTION = (
    "You compare two answers to the same question. Reply with one word: SAME if a reader learns the same from both,"
    " DIFFERENT if one says something else, is wrong where the other is right, or leaves out what matters."
)
# Credentials, and API versions.
_PASSED_HEADERS = tuple("authorization api-key x-api-key openai-organization openai-project anthropic-version".split())
_MAX_TOKENS = 200
_MAX_BYTES = 2**20
_SECONDS = 300.0
_MAX_QUEUED = 64
_log = logging.getLogger("kvproxy")


async def judge_with_model(
    backend: Backend, request: ApiRequest, question: str, cached: str, fresh: str
) -> bool | None:
    """Ask the request's model whether two answers are equivalent; return None if it fails or gives no verdict."""
    prompt = f"Question:\n{question}\n\nFirst answer:\n{cached}\n\nSecond answer:\n{fresh}\n\nSAME or DIFFERENT?"
    try:
        whole = await fetch_response(backend, _judge_request(request, prompt), max_bytes=_MAX_BYTES, seconds=_SECONDS)
    except (KvproxyError, TimeoutError):
        return None
    text = (answer_text(dumps(whole), request.api.name) if whole is not None else None) or ""
    words = re.findall(r"\b(SAME|DIFFERENT)\b", text.upper())
    # A reasoning model states its decision last.
    return words[-1] == "SAME" if words else None


def _judge_request(request: ApiRequest, prompt: str) -> ApiRequest:
    body: JsonObject = {"model": request.model, "temperature": 0}
    turn: list[Json] = [{"role": "user", "content": prompt}]
    match request.api.name:
        case "messages":
            body |= {"system": _INSTRUCTION, "messages": turn, "max_tokens": _MAX_TOKENS}
        case "responses":
            body |= {"instructions": _INSTRUCTION, "input": prompt, "max_output_tokens": _MAX_TOKENS}
        case _:
            body |= {"messages": [{"role": "system", "content": _INSTRUCTION}, *turn], "max_tokens": _MAX_TOKENS}
    headers = {name: request.headers[name] for name in _PASSED_HEADERS if name in request.headers}
    headers["content-type"] = "application/json"
    api = request.api if request.api.name in ("messages", "responses") else APIS["chat"]
    return ApiRequest(api, body, dumps(body), headers, request.tenant, f"{request.request_id}-judge")


def answer_text(response: bytes, endpoint: str = "chat") -> str | None:
    api = APIS.get(endpoint)
    try:
        whole = loads(response)
    except ValueError:
        return None
    text = api.output_text(whole) if api is not None and isinstance(whole, dict) else None
    return text if text and text.strip() else None


class ResponseComparer:
    """Compares responses in the background, one pair at a time. While the queue is full, new comparisons are dropped."""

    def __init__(self, semantic: SemanticCache, backend: Backend, settings: CacheSettings) -> None:
        self._semantic = semantic
        self._backend = backend
        self._settings = settings
        self._queue: asyncio.Queue[tuple[ApiRequest, Entry, Lookup]] = asyncio.Queue(_MAX_QUEUED)
        self._task: asyncio.Task[None] | None = None
        self.counts: Counter[str] = Counter()
        """Number of comparisons by result: right, wrong, undecided, dropped."""

    def compare(self, request: ApiRequest, fresh: Entry, lookup: Lookup) -> None:
        """Queue the comparison of a new response with the cached responses that its semantic lookup found."""
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        try:
            self._queue.put_nowait((request, fresh, lookup))
        except asyncio.QueueFull:
            self.counts["dropped"] += 1

    async def wait_until_idle(self) -> None:
        await self._queue.join()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while True:
            request, fresh, lookup = await self._queue.get()
            try:
                result = await self._compare_with_candidates(request, fresh, lookup)
                if lookup.observation is not None:
                    self.counts[result] += 1
            except CacheStoreError as error:
                _log.error("an observation was not stored: %s", error)
            except Exception as error:
                # One failed comparison must not end the task.
                _log.error("an answer could not be compared", exc_info=error)
            finally:
                self._queue.task_done()

    async def _compare_with_candidates(self, request: ApiRequest, fresh: Entry, lookup: Lookup) -> str:
        learning = self._semantic.learning
        text = answer_text(fresh.response, fresh.endpoint)
        if text is None or learning is None:
            return "undecided"

        async def same(id: str) -> bool | None:
            entry = await self._semantic.entry(id)
            cached = answer_text(entry.response, entry.endpoint) if entry is not None else None
            if cached is None:
                return None
            return await self.have_same_meaning(request, fresh.prompt, cached, text)

        shadow = self._settings.shadow
        learned = await learning.record_response(lookup, fresh, text, same, was_to_be_served=shadow)
        if learned is None:
            return "undecided"
        return "right" if learned.right else "wrong"

    async def have_same_meaning(self, request: ApiRequest, question: str, cached: str, fresh: str) -> bool | None:
        """Return whether two answers are equal, or equivalent according to the setting `cache.judge`; None if undecided."""
        judge = self._settings.judge
        if text_digest(cached) == text_digest(fresh):
            return True
        if judge == "model":
            return await judge_with_model(self._backend, request, question, cached, fresh)
        return (
            judge == "similarity"
            and await self._semantic.similarity(cached, fresh) >= self._settings.judge_similarity
            and not await asyncio.to_thread(a_few_words_differ, cached, fresh)
        )
