"""Compares new responses with cached responses to similar questions. The learned policy learns from the results."""

import asyncio
import contextlib
import logging
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, dumps, loads
from kvproxy.backends.protocol import Backend
from kvproxy.errors import KvproxyError
from kvproxy.flow.backend_response import fetch_response
from kvproxy.flow.layers.cached import is_shadow, judge_of
from kvproxy.index.entry import Entry, learning_namespace
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.policies.learned.answer_classes import text_digest
from kvproxy.index.policies.learned.answer_facts import WordVerdicts, compare_words
from kvproxy.index.policies.learned.feedback import FeedbackRecorder
from kvproxy.index.search.lookup_result import Lookup
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store.observations import Audit, Observation
from kvproxy.settings import CacheSettings

_INSTRUCTION = (
    "You compare two answers to the same question. Reply with one word: SAME if both state the same facts in any wording,"
    " DIFFERENT if a number, name, condition, or other fact differs, or if one leaves out what matters."
)
# Credentials, and API versions.
_PASSED_HEADERS = tuple("authorization api-key x-api-key openai-organization openai-project anthropic-version".split())
# A model of completions may have no chat template: its server then refuses the request, and there is no verdict.
_JUDGE_APIS: dict[ApiName, ApiName] = {
    "chat": "chat",
    "completions": "chat",
    "messages": "messages",
    "responses": "responses",
}
_MAX_TOKENS = 200
_MAX_BYTES = 2**20
_SECONDS = 300.0
_MAX_QUEUED = 64
_MAX_READ = 10  # Answers in one read.
MAX_WARNED = 10_000
"""Maximum namespaces of which it is known that the log has a warning."""
_BATCH = 8
_AUDITED_SHARE = 0.05
_MAX_CREDIT = 20.0
_log = logging.getLogger("kvproxy")


async def judge_with_model(
    backend: Backend, request: ApiRequest, question: str, cached: str, fresh: str
) -> bool | None:
    """Ask the request's model whether two answers are equivalent; return None if it fails or gives no verdict."""
    prompt = f"Question:\n{question}\n\nFirst answer:\n{cached}\n\nSecond answer:\n{fresh}\n\nSAME or DIFFERENT?"
    judging = _judge_request(request, prompt)
    try:
        whole = await fetch_response(backend, judging, max_bytes=_MAX_BYTES, seconds=_SECONDS)
    except (KvproxyError, TimeoutError):
        return None
    text = (answer_text(dumps(whole), judging.api.name) if whole is not None else None) or ""
    words = re.findall(r"\b(SAME|DIFFERENT)\b", text.upper())
    # A reasoning model states its decision last.
    return words[-1] == "SAME" if words else None


def _judge_request(request: ApiRequest, prompt: str) -> ApiRequest:
    body: JsonObject = {"model": request.model, "temperature": 0}
    turn: list[Json] = [{"role": "user", "content": prompt}]
    api = APIS[_JUDGE_APIS[request.api.name]]
    match api.name:
        case "messages":
            body |= {"system": _INSTRUCTION, "messages": turn, "max_tokens": _MAX_TOKENS}
        case "responses":
            body |= {"instructions": _INSTRUCTION, "input": prompt, "max_output_tokens": _MAX_TOKENS}
        case "chat":
            body |= {"messages": [{"role": "system", "content": _INSTRUCTION}, *turn], "max_tokens": _MAX_TOKENS}
    headers = {name: request.headers[name] for name in _PASSED_HEADERS if name in request.headers}
    headers["content-type"] = "application/json"
    return ApiRequest(api, body, dumps(body), headers, request.tenant, f"{request.request_id}-judge")


def answer_text(response: bytes, endpoint: str = "chat") -> str | None:
    api = APIS.get(endpoint)
    try:
        whole = loads(response)
    except ValueError:
        return None
    text = api.output_text(whole) if api is not None and isinstance(whole, dict) else None
    return text if text and text.strip() else None


class ModelBudget:
    """Limits the requests to the model as a judge. Undecided pairs come first; a small share of the others is audited.

    Args:
        share: requests to the model per compared response.
        random_number: returns a uniform random number below 1.
    """

    def __init__(self, share: float, random_number: Callable[[], float] = random.random) -> None:
        self._share = share
        self._random_number = random_number
        self._credit = _MAX_CREDIT / 2

    def add_response(self) -> None:
        self._credit = min(_MAX_CREDIT, self._credit + self._share)

    def take(self, *, is_audit: bool) -> bool:
        """Return whether the model may be asked about one pair, and count the request."""
        if self._credit < 1 or (is_audit and self._random_number() >= _AUDITED_SHARE):
            return False
        self._credit -= 1
        return True


@dataclass(frozen=True, slots=True)
class Comparison:
    """A response that waits for its comparison. `priority` is 0 for explored hits, and higher for less informative ones."""

    request: ApiRequest
    fresh: Entry
    lookup: Lookup
    audits: list[Audit] = field(default_factory=list)

    @property
    def priority(self) -> int:
        if self.lookup.chosen is not None:
            return 0
        return 1 if self.lookup.observation is not None else 2


class ComparisonQueue:
    """Waiting comparisons. A full queue drops the oldest of those with the least priority."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: tuple[deque[Comparison], ...] = (deque(), deque(), deque())
        self._is_filled = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._waiting))

    def put(self, comparison: Comparison) -> Comparison | None:
        """Add a comparison; return the dropped one, if any."""
        self._waiting[comparison.priority].append(comparison)
        self._is_filled.set()
        return next(queue for queue in reversed(self._waiting) if queue).popleft() if len(self) > self._limit else None

    async def take(self, limit: int) -> list[Comparison]:
        """Wait for comparisons, and remove the `limit` most important ones."""
        await self._is_filled.wait()
        comparisons: list[Comparison] = []
        for waiting in self._waiting:
            while waiting and len(comparisons) < limit:
                comparisons.append(waiting.popleft())
        if not len(self):
            self._is_filled.clear()
        return comparisons


@dataclass(frozen=True, slots=True)
class OpenPair:
    """Two answers that their words do not decide, or that the model may judge, too."""

    cached: str
    fresh: str
    verdicts: WordVerdicts


_Recorded = tuple[Observation | None, str | None]
"""The result of a comparison, and a warning about the namespace (see `LearningStatus.warning`)."""
Step = TypeVar("Step")
Result = TypeVar("Result")
_VERDICTS = {"right": "equal", "wrong": "different", "undecided": "undecided"}


class ComparedAnswers:
    """The texts of a fresh answer and of the candidates' answers, which are read when they are first compared."""

    def __init__(self, semantic: SemanticCache, comparison: Comparison, fresh_text: str) -> None:
        self._semantic = semantic
        self._texts: dict[str, str | None] = {comparison.fresh.id: fresh_text}
        pending = comparison.lookup.observation
        nearest: dict[str, str] = {}
        for candidate in pending.candidates if pending is not None else ():
            nearest.setdefault(candidate.answer, candidate.id)
        self._nearest_of_classes = list(nearest.values())[:_MAX_READ]

    def texts(self, *ids: str) -> list[str | None]:
        """Return the texts of entries' answers; None for an answer without text, or a removed entry."""
        unread = [id for id in ids if id not in self._texts]
        if unread and len(self._texts) > 1:
            # The first comparison did not decide, so those with the other classes follow.
            unread += [id for id in self._nearest_of_classes if id not in (*self._texts, *unread)]
        entries = self._semantic.entries(unread) if unread else {}
        for id in unread:
            self._texts[id] = answer_text(entries[id].response, entries[id].endpoint) if id in entries else None
        return [self._texts[id] for id in ids]


class ResponseComparer:
    """Compares responses in the background, in batches. While the queue is full, the least important are dropped."""

    def __init__(self, semantic: SemanticCache, backend: Backend, settings: CacheSettings) -> None:
        self._semantic = semantic
        self._backend = backend
        self._settings = settings
        self._queue = ComparisonQueue(_MAX_QUEUED)
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._budget = ModelBudget(settings.judge_budget)
        self._warned: set[str] = set()
        self.report: Callable[[str, str], None] = lambda request_id, verdict: None
        """Receives the id of each request that would have got a stored response, and the verdict, see `ComparisonEnded`."""
        self.counts: Counter[str] = Counter()
        """Number of comparisons by result: right, wrong, undecided, dropped, and dropped ones of explored hits."""

    def compare(self, request: ApiRequest, fresh: Entry, lookup: Lookup) -> None:
        """Queue the comparison of a new response with the cached responses that its semantic lookup found.

        Without a judge for the request, it does nothing.
        """
        if judge_of(request, self._settings) == "none":
            return
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        self._idle.clear()
        dropped = self._queue.put(Comparison(request, fresh, lookup))
        if dropped is not None:
            self.counts["dropped"] += 1
            self.counts["dropped_explored"] += dropped.priority == 0

    async def wait_until_idle(self) -> None:
        await self._idle.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while True:
            batch = await self._queue.take(1)
            if len(self._queue) and judge_of(batch[0].request, self._settings) == "model":
                batch += await self._queue.take(_BATCH - 1)
            await asyncio.gather(*map(self._compare, batch))
            if not len(self._queue):
                self._idle.set()

    async def _compare(self, comparison: Comparison) -> None:
        try:
            observation, warning = await self._record(comparison)
            result = _result(observation)
            if comparison.lookup.observation is not None:
                self.counts[result] += 1
            if comparison.lookup.chosen is not None:
                self.report(comparison.request.request_id, _VERDICTS[result])
            self._warn(learning_namespace(comparison.lookup.namespace), warning)
        except CacheStoreError as error:
            _log.error("an observation was not stored: %s", error)
        except Exception as error:
            # One failed comparison must not end the task.
            _log.error("an answer could not be compared", exc_info=error)

    def _warn(self, namespace: str, warning: str | None) -> None:
        if warning is None or namespace in self._warned:
            return
        if len(self._warned) >= MAX_WARNED:
            self._warned.clear()
        self._warned.add(namespace)
        _log.warning("namespace %s: %s", namespace[:12], warning)

    async def _record(self, comparison: Comparison) -> _Recorded:
        text = answer_text(comparison.fresh.response, comparison.fresh.endpoint)
        if text is None or self._semantic.learning is None:
            return None, None
        self._budget.add_response()
        recording, verdict = self._recording(comparison, text, self._semantic.learning), None
        # A thread change costs as much as a comparison of short answers. Lookups go first: clients wait for them.
        while isinstance(step := await self._semantic.run_in_background(partial(_send, recording, verdict)), OpenPair):
            verdict = await self._decide(comparison.request, comparison.fresh.prompt, step, comparison.audits)
        return step

    def _recording(
        self, comparison: Comparison, text: str, learning: FeedbackRecorder
    ) -> Generator[OpenPair, bool | None, _Recorded]:
        """Compare a response, and store the result, on worker threads; yield the pairs that the event loop must decide."""
        answers = ComparedAnswers(self._semantic, comparison, text)
        was_to_be_served = is_shadow(comparison.request, self._settings)
        lookup, audits = comparison.lookup, comparison.audits
        recording = learning.record_response(
            lookup, comparison.fresh, text, was_to_be_served=was_to_be_served, audits=audits
        )
        step = _send(recording, None)
        while isinstance(step, tuple):
            cached, fresh = answers.texts(*step)
            verdict = (
                None if cached is None or fresh is None else self._compare_facts(comparison.request, cached, fresh)
            )
            step = _send(recording, (yield verdict) if isinstance(verdict, OpenPair) else verdict)
        return step, learning.warning(lookup.namespace)

    async def have_same_meaning(self, request: ApiRequest, question: str, cached: str, fresh: str) -> bool | None:
        """Return whether two answers are equivalent according to the judge of the request; None if undecided."""
        verdict = await asyncio.to_thread(self._compare_facts, request, cached, fresh)
        return await self._decide(request, question, verdict, []) if isinstance(verdict, OpenPair) else verdict

    def _compare_facts(self, request: ApiRequest, cached: str, fresh: str) -> bool | OpenPair | None:
        judge = judge_of(request, self._settings)
        if text_digest(cached) == text_digest(fresh):
            return True
        if judge == "equality":
            return False
        verdicts = compare_words(cached, fresh, self._settings.judge_similarity)
        cosine = self._semantic.cached_similarity(cached, fresh) if verdicts.need_cosine else 0.0
        if judge == "model" or cosine is None:
            return OpenPair(cached, fresh, verdicts)
        return verdicts.at(cosine)

    async def _decide(self, request: ApiRequest, question: str, pair: OpenPair, audits: list[Audit]) -> bool | None:
        """Return whether the answers of a pair are equivalent. If facts decide it and the model judges it, add it to `audits`."""
        verdicts = pair.verdicts
        # The embedding of an answer takes more time than the lookup of its question.
        equal = verdicts.at(await self._semantic.similarity(pair.cached, pair.fresh) if verdicts.need_cosine else 0.0)
        is_asked = judge_of(request, self._settings) == "model" and self._budget.take(is_audit=equal is not None)
        if not is_asked:
            return equal
        verdict = await judge_with_model(self._backend, request, question, pair.cached, pair.fresh)
        if equal is not None and verdict is not None:
            audits.append((equal, verdict))
        return equal if verdict is None else verdict


def _send(steps: Generator[Step, bool | None, Result], verdict: bool | None) -> Step | Result:
    """Return the generator's next step, or its result."""
    try:
        return steps.send(verdict)
    except StopIteration as end:
        result: Result = end.value
        return result


def _result(observation: Observation | None) -> str:
    if observation is None or observation.source == "undecided":
        return "undecided"
    return "right" if observation.right else "wrong"
