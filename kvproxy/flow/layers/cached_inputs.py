"""The layer that answers the inputs of an array from the response cache, and asks the rest only for the other inputs."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import starmap

from kvproxy.apis.api_request import ApiRequest, in_thread_if_large
from kvproxy.apis.embeddings import join_responses, split_response
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_object, dumps, loads
from kvproxy.errors import UpstreamProtocolError
from kvproxy.exchange import Answer, ArrayInputs, Exchange, SingleRequest
from kvproxy.flow.layers.cached import LoggingFailures, StoredResponses, Use, look_up_in_time
from kvproxy.flow.layers.equal_responses import ComputeKey, EqualResponses
from kvproxy.flow.layers.layer import Layer, Prediction, Rest
from kvproxy.index.entry import Entry, Stale
from kvproxy.index.response_cache import ResponseCache

_STEP = 32  # Inputs that are looked up before other tasks may run.
_OF_BODY = ("content-length", "content-md5", "content-digest", "repr-digest", "digest", "etag")
"""Headers of the upstream that describe the body of its response."""


async def joint_request(singles: Sequence[SingleRequest], compute_key: ComputeKey) -> SingleRequest:
    """Return the request for the inputs of one or several single requests, and its key."""
    request, key = singles[0]
    if len(singles) > 1:
        inputs = [single.body["input"] for single, _ in singles]
        request = request.with_body({**request.body, "input": inputs})
        key = await compute_key(request)
    return request, key


class CachedInputs(Layer):
    """Serves the inputs of an array whose responses are stored, and asks the rest once for the other inputs.

    The same rules as for single requests decide whether a stored response answers an input.

    Args:
        max_bytes: size of the largest response to a single request.
        compute_key: see `RequestPath.compute_key`.
    """

    def __init__(
        self,
        cache: ResponseCache,
        responses: StoredResponses,
        equal: EqualResponses,
        max_bytes: int,
        compute_key: ComputeKey,
    ) -> None:
        super().__init__()
        self._cache = cache
        self._responses = responses
        self._equal = equal
        self._max_bytes = max_bytes
        self._compute_key = compute_key

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        given = _separate_inputs(exchange)
        if not given:
            return await rest(exchange)
        inputs = await look_up_in_time(exchange, self._cache, partial(self._find, given))
        if not inputs.missing:
            with LoggingFailures(exchange):
                answer = await self._responses.replay(exchange, (), stale=_stale_reason(inputs))
                self.count_stale(_stale_reason(inputs))
                return answer
            # A stored response is invalid.
            inputs = await self._find(given, exchange)
        if len(inputs.keys) == 1:
            # The body reaches the upstream as the client sent it.
            exchange.key = inputs.missing[0][1]
        elif len(inputs.missing) < len(inputs.keys):
            # Charges, keys, and costs are those of the missing inputs.
            exchange.request, exchange.key = await joint_request(inputs.missing, self._compute_key)
        answer = await rest(exchange)
        # A later layer may have found stored responses to all missing inputs.
        if exchange.hit is None and answer.status == 200 and len(inputs.missing) < len(inputs.keys):
            answer = await self._join(exchange, inputs, answer)
            self.count_stale(_stale_reason(inputs))
        return answer

    async def predict(self, exchange: Exchange) -> Prediction | None:
        given = _separate_inputs(exchange)
        inputs = await self._find(given, exchange) if given else None
        if inputs is None or inputs.missing:
            return None
        return Prediction("exact", stale=_stale_reason(inputs))

    async def _find(self, given: Sequence[Json], exchange: Exchange) -> ArrayInputs:
        """Look up the single request for each input, unless a lookup has failed."""
        keys, singles = await self._single_requests(given, exchange.api_request)
        stored: Mapping[str, Entry] = {}
        uses: dict[str, Use] = {}
        with LoggingFailures(exchange):
            stored = await self._stored_responses([] if exchange.lookup_failed else list(singles.values()))
            for key, entry in stored.items():
                if (use := self._responses.use_for_equal(entry, exchange)) is not None:
                    uses[key] = use
        exchange.exact_done = time.perf_counter()
        missing = [single for key, single in singles.items() if key not in uses]
        stale = [single for key, single in singles.items() if uses.get(key, "fresh") != "fresh"]
        exchange.inputs = ArrayInputs(keys, missing, stored, stale=stale)
        exchange.inputs.serve({key: stored[key] for key in uses})
        return exchange.inputs

    async def _single_requests(
        self, given: Sequence[Json], request: ApiRequest
    ) -> tuple[list[str], dict[str, SingleRequest]]:
        """Return the exact key of the single request for each input, and each different request by its key."""
        keys: list[str] = []
        singles: dict[str, SingleRequest] = {}
        for start in range(0, len(given), _STEP):
            for each in given[start : start + _STEP]:
                single = request.with_body({**request.body, "input": each})
                key = await self._compute_key(single)
                keys.append(key.exact)
                singles.setdefault(key.exact, (single, key))
            await asyncio.sleep(0)
        return keys, singles

    async def _stored_responses(self, singles: Sequence[SingleRequest]) -> Mapping[str, Entry]:
        stored: dict[str, Entry] = {}
        for start in range(0, len(singles), _STEP):
            found = await asyncio.gather(*starmap(self._equal.find, singles[start : start + _STEP]))
            stored |= {entry.key: entry for entry in found if entry is not None}
        return stored

    async def _join(self, exchange: Exchange, inputs: ArrayInputs, answer: Answer) -> Answer:
        reading = _read(answer, self._max_bytes * exchange.size_factor)
        computed = await (reading if exchange.watch is None else exchange.watch(reading))
        size = len(computed) + sum(len(entry.response) for entry in inputs.served.values())
        body = await in_thread_if_large(size, partial(_joined_body, inputs, computed))
        self._responses.count_hits(exchange, inputs.served.values())
        headers = [header for header in answer.headers if header[0] not in _OF_BODY]
        return Answer(200, headers, body)


def _stale_reason(inputs: ArrayInputs) -> Stale | None:
    return "stale-while-revalidate" if inputs.stale else None


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


def _joined_body(inputs: ArrayInputs, computed: bytes) -> bytes:
    missing = [key.exact for _, key in inputs.missing]
    try:
        head: JsonObject = as_object(loads(computed))
    except ValueError:
        head = {}
    fresh = split_response(head, len(missing))
    if fresh is None:
        raise UpstreamProtocolError(f"the upstream's response has not one embedding for each of {len(missing)} inputs")
    singles: dict[str, JsonMap] = dict(zip(missing, fresh, strict=True))
    singles |= {key: as_object(loads(entry.response)) for key, entry in inputs.served.items()}
    return dumps(join_responses(head, [singles[key] for key in inputs.keys]))
