"""Exports the requests of a journal as OpenAI JSON lines."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvproxy.apis import APIS
from kvproxy.apis.api_request import PUBLIC_TENANT, SESSION_HEADERS
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.apis.request_directives import NAMESPACE_HEADER
from kvproxy.journal.reader import OF_PROXY, JournalReader, PromptCount
from kvproxy.journal.record import Layer, RecordWithQuestions
from kvproxy.journal.sessions.session_reader import session_names
from kvproxy.operations.journal import DirectJournal
from kvproxy.operations.record_query import RecordQuery

_SUCCESS = 200


def request_lines(journal: DirectJournal, query: RecordQuery) -> Iterator[bytes | Layer]:
    """Yield a line per successful request of a client, oldest first; the layer of a request whose text is not stored.

    A line has `custom_id`, `method`, `url`, and `body`, as in a batch of OpenAI, and `time` in seconds since the epoch. Its
    `layer`, `service_tier`, `modalities`, tokens, `cost`, `first_ms`, `total_ms`, and `tags` are those of `log --json`; null
    if unknown. Its `headers` have the name of its session, a number for its namespace, and a number for its tenant, which is
    also the `client`, so that tools that read the file keep them apart.
    """
    headers = _ClientHeaders(journal.reader)
    bodies: dict[tuple[int, str], JsonObject | None] = {}
    for record in reversed(journal.records(replace(query, limit=None))):
        if record.status != _SUCCESS or record.layer in OF_PROXY or record.api not in APIS:
            continue
        if record.prompt is None:
            yield record.layer
            continue
        place = (record.prompt, record.tenant)
        if place not in bodies:
            prompt = PromptCount(record.prompt, record.tenant, record.api, record.model, 1, 1)
            (bodies[place],) = journal.request_bodies([prompt])
        body = bodies[place]
        yield record.layer if body is None else dumps({**_facts_of(record), **headers.of(record), "body": body}) + b"\n"


def _facts_of(record: RecordWithQuestions) -> JsonObject:
    return {
        "custom_id": record.request_id,
        "method": "POST",
        "url": APIS[record.api].path,
        "time": record.time,
        "layer": record.layer,
        "service_tier": record.service_tier,
        "modalities": record.modalities,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.reused_tokens,
        "written_5m": record.written_5m,
        "written_1h": record.written_1h,
        "completion_tokens": record.completion_tokens,
        "cost": record.cost,
        "first_ms": record.first_ms,
        "total_ms": record.total_ms,
        "tags": record.tags,
    }


class _ClientHeaders:
    """Headers in place of those that the journal does not store: it has digests of keys and namespaces."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._sessions: Mapping[int, str] = session_names(reader)
        self._tenants: dict[str, str] = {}
        self._namespaces: dict[bytes, str] = {}

    def of(self, record: RecordWithQuestions) -> JsonObject:
        """Return the fields `headers` and `client` of a record; a field without a value is left out."""
        headers: JsonObject = {}
        if (namespace := self._namespace(record)) is not None:
            headers[NAMESPACE_HEADER] = self._namespaces.setdefault(namespace, f"namespace-{len(self._namespaces) + 1}")
        if (session := self._sessions.get(record.number)) is not None:
            headers[SESSION_HEADERS[0]] = session
        if record.tenant == PUBLIC_TENANT:
            return {"headers": headers} if headers else {}
        name = self._tenants.setdefault(record.tenant, f"tenant-{len(self._tenants) + 1}")
        return {"client": name, "headers": {**headers, "authorization": name}}

    def _namespace(self, record: RecordWithQuestions) -> bytes | None:
        regions = None if record.prompt is None else self._reader.regions(record.prompt)
        if regions is None or "namespace" not in regions.names:
            return None
        return regions.digests[regions.names.index("namespace")]
