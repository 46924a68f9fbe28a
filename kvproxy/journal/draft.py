"""A record under way: references to what the flow has at hand. Nothing is computed of them on the event loop."""

from time import perf_counter

from kvproxy.apis.json import JsonObject
from kvproxy.apis.request import ApiRequest
from kvproxy.index.entry import Entry
from kvproxy.index.search.lookup import Lookup
from kvproxy.journal.record import Layer


class Draft:
    """What is known of a request so far. The flow fills it in; the journal makes a `Record` of it, in its own thread.

    Times of steps are those of `time.perf_counter`; 0 where the step was not taken. What most requests lack stands in the class,
    so that a hit has little to set.

    Attributes:
        time: when it came, in seconds since the epoch.
        api, request_id, tenant: see `Record`.
        request: the request, once it was read.
        key: its exact key.
        parts: what the key is a digest of, by name.
        failure: the reason token of what was raised. The error itself is not kept: its traceback holds this record, so that
            neither would go before Python looks for circles.
        hit: the entry that answered.
        stale: why it answered although its time was over: `stale-while-revalidate` or `stale-if-error`.
        lookup: what was found of similar questions.
        late: an answer was stored, but it was older than the request allows.
        lost: the lookup failed.
        passed: why the request went past the caches: a token of `reasons.py`.
        left: the client left in the middle of the answer.
        traceparent: what the header of a request that was not read says of its trace.
        entry: id of the entry that was made.
        prompt_tokens, completion_tokens, reused_tokens, predicted_tokens: of a fresh answer.
        began, looked, judged, opened, first, ended: when it came, the exact lookup and the semantic one were done, the backend
            and the proxy began to answer, and the answer ended.
    """

    key: str | None = None
    parts: JsonObject | None = None
    layer: Layer = "error"
    status: int = 500
    failure: str | None = None
    hit: Entry | None = None
    stale: str | None = None
    lookup: Lookup | None = None
    late: bool = False
    lost: bool = False
    passed: str | None = None
    left: bool = False
    traceparent: str | None = None
    entry: str | None = None
    upstream: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reused_tokens: int | None = None
    predicted_tokens: int | None = None
    looked: float = 0.0
    judged: float = 0.0
    opened: float = 0.0
    first: float = 0.0
    ended: float = 0.0

    def __init__(self, api: str, request_id: str, tenant: str, request: ApiRequest | None, time: float) -> None:
        self.api = api
        self.request_id = request_id
        self.tenant = tenant
        self.request = request
        self.time = time
        self.began = perf_counter()
