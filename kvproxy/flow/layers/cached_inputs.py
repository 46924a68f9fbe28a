"""The layer that answers the inputs of an array from the response cache, and asks the rest only for the other inputs."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kvproxy.apis.api_request import ApiRequest, in_thread_if_large
from kvproxy.apis.embedding_inputs import join_responses, split_response, sum_tokens, without_usage
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_object, dumps, loads
from kvproxy.errors import UpstreamProtocolError
from kvproxy.exchange import Answer, ArrayInputs, CacheKey, Exchange
from kvproxy.flow.backend_response import JSON
from kvproxy.flow.layers.cached import LoggingFailures, StoredResponses, look_up_in_time
from kvproxy.flow.layers.layer import Layer, Prediction, Rest
from kvproxy.flow.store_response import ResponseWriter
from kvproxy.index.entry import Entry
from kvproxy.index.response_cache import ResponseCache

_STEP = 32  # Inputs that are looked up before other tasks may run.
_OF_BODY = ("content-length", "content-md5", "content-digest", "repr-digest", "digest", "etag")
"""Headers of the upstream that describe the body of its response."""


@dataclass(frozen=True, slots=True)
class _Array:
    """The inputs of a request.

    Attributes:
        keys: exact key of the single request for each input, in order.
        singles: each different single request, by its exact key.
        entries: stored responses to single requests that the request accepts, by exact key.
    """

    keys: list[str]
    singles: dict[str, tuple[ApiRequest, CacheKey]]
    entries: dict[str, Entry]

    @property
    def missing(self) -> list[tuple[ApiRequest, CacheKey]]:
        return [single for key, single in self.singles.items() if key not in self.entries]

    @property
    def stored(self) -> list[Entry]:
        """The stored response to each input that has one."""
        return [self.entries[key] for key in self.keys if key in self.entries]

    def inputs(self) -> ArrayInputs:
        stored = self.stored
        tokens = sum_tokens([entry.prompt_tokens for entry in stored])
        return ArrayInputs(len(self.keys), len(stored), tokens, tuple(self.missing))


class CachedInputs(Layer):
    """Serves the inputs of an array whose responses are stored, and asks the rest once for the other inputs.

    Args:
        writer: limits the size of a response.
        compute_key: see `RequestPath.compute_key`.
    """

    def __init__(
        self,
        cache: ResponseCache,
        responses: StoredResponses,
        writer: ResponseWriter,
        compute_key: Callable[[ApiRequest], Awaitable[CacheKey]],
    ) -> None:
        super().__init__()
        self._cache = cache
        self._responses = responses
        self._writer = writer
        self._compute_key = compute_key

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        inputs = _separate_inputs(exchange)
        if not inputs:
            return await rest(exchange)
        array = await look_up_in_time(exchange, self._cache, partial(self._find, inputs))
        if not array.missing:
            with LoggingFailures(exchange):
                return await self._serve(exchange, array)
            # A stored response is invalid.
            array = replace(array, entries={})
            exchange.inputs = array.inputs()
        await self._replace_request(exchange, array)
        answer = await rest(exchange)
        if exchange.hit is not None:
            # An earlier version stored the response to the whole array, which `StaleIfError` served.
            exchange.inputs = None
        elif answer.status == 200 and len(array.missing) < len(array.keys):
            return await self._join(exchange, array, answer)
        return answer

    async def predict(self, exchange: Exchange) -> Prediction | None:
        inputs = _separate_inputs(exchange)
        array = await self._find(inputs, exchange) if inputs else None
        return Prediction("exact") if array is not None and not array.missing else None

    async def _find(self, inputs: Sequence[Json], exchange: Exchange) -> _Array:
        request, array = exchange.api_request, _Array([], {}, {})
        for start in range(0, len(inputs), _STEP):
            for given in inputs[start : start + _STEP]:
                single = request.with_body({**request.body, "input": given})
                key = await self._compute_key(single)
                array.keys.append(key.exact)
                array.singles.setdefault(key.exact, (single, key))
            await asyncio.sleep(0)
        with LoggingFailures(exchange):
            await self._look_up(exchange, array)
        exchange.inputs = array.inputs()
        return array

    async def _look_up(self, exchange: Exchange, array: _Array) -> None:
        keys = [] if exchange.lookup_failed else list(array.singles)
        for start in range(0, len(keys), _STEP):
            found = await asyncio.gather(*map(self._cache.find, keys[start : start + _STEP]))
            for entry in found:
                if entry is None or self._responses.is_expired(entry):
                    continue
                if self._responses.accepts_age(entry, exchange):
                    array.entries[entry.key] = entry
                else:
                    exchange.is_entry_refused = True
        exchange.exact_done = time.perf_counter()

    async def _serve(self, exchange: Exchange, array: _Array) -> Answer:
        stored = array.stored
        size = sum(len(entry.response) for entry in stored)
        body = await in_thread_if_large(size, partial(_joined_entries, stored))
        self._responses.record_hit(exchange, stored)
        return Answer(200, [JSON], body)

    async def _replace_request(self, exchange: Exchange, array: _Array) -> None:
        """Make the exchange's request the one for the missing inputs, so that charges, keys, and costs are theirs."""
        missing = array.missing
        if len(missing) == 1:
            exchange.request, exchange.key = missing[0]
        elif len(missing) < len(array.keys):
            inputs = [single.body["input"] for single, _ in missing]
            request = exchange.api_request
            exchange.request = request.with_body({**request.body, "input": inputs})
            exchange.key = await self._compute_key(exchange.request)

    async def _join(self, exchange: Exchange, array: _Array, answer: Answer) -> Answer:
        reading = _read(answer, self._writer.max_bytes(exchange))
        computed = await (reading if exchange.watch is None else exchange.watch(reading))
        size = len(computed) + sum(len(entry.response) for entry in array.stored)
        body = await in_thread_if_large(size, partial(_joined_body, array, computed))
        self._responses.count_hits(exchange, array.stored)
        headers = [header for header in answer.headers if header[0] not in _OF_BODY]
        return Answer(200, headers, body)


def _separate_inputs(exchange: Exchange) -> Sequence[Json]:
    """Return the inputs that are cached one by one; empty without an array, or if it is cached as a whole.

    An answer must not mix embeddings of a model and its fallback. At a path without /v1, servers have other formats.
    """
    request = exchange.api_request
    has_fallback = request.route is not None and bool(request.route.fallbacks)
    is_cached = exchange.cacheable and request.control.rule.cache is not False
    may_be_split = is_cached and not request.path and not has_fallback
    return request.api.separate_inputs(request.body) if may_be_split else ()


async def _read(answer: Answer, max_bytes: int) -> bytes:
    if isinstance(answer.body, bytes):
        return answer.body
    chunks, size = [], 0
    try:
        async for chunk in answer.body:
            chunks.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise UpstreamProtocolError(
                    f"the upstream's response to the inputs that are not stored has over {max_bytes:,} bytes: send fewer"
                    " inputs, or ask the operator to raise cache.max_response_bytes"
                )
        return b"".join(chunks)
    finally:
        answer.close()


def _joined_entries(stored: Sequence[Entry]) -> bytes:
    parsed = {entry.id: as_object(loads(entry.response)) for entry in stored}
    singles = [parsed[entry.id] for entry in stored]
    return dumps(join_responses(without_usage(singles[0]), singles))


def _joined_body(array: _Array, computed: bytes) -> bytes:
    missing = [key.exact for _, key in array.missing]
    try:
        head: JsonObject = as_object(loads(computed))
    except ValueError:
        head = {}
    fresh = split_response(head, len(missing))
    if fresh is None:
        raise UpstreamProtocolError(f"the upstream's response has not one embedding for each of {len(missing)} inputs")
    singles: dict[str, JsonMap] = dict(zip(missing, fresh, strict=True))
    singles |= {key: as_object(loads(entry.response)) for key, entry in array.entries.items()}
    return dumps(join_responses(head, [singles[key] for key in array.keys]))
