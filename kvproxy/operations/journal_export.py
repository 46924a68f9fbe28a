"""Exports the requests of a journal as OpenAI JSON lines."""

from collections.abc import Iterator
from dataclasses import replace

from kvproxy.apis import APIS
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.journal.reader import OF_PROXY, PromptCount
from kvproxy.operations.journal import DirectJournal
from kvproxy.operations.record_query import RecordQuery

_SUCCESS = 200


def request_lines(journal: DirectJournal, query: RecordQuery) -> Iterator[bytes | None]:
    """Yield a line per successful request of a client, oldest first; None for a request whose text is not stored.

    A line has `custom_id`, `method`, `url`, and `body`, as in a batch of OpenAI, and `time` in seconds since the epoch. Its
    `layer`, `service_tier`, tokens, `cost`, and `tags` are those of `log --json`; null if unknown.
    Tenants are numbered, and become `client` and the header `authorization`, so that tools that read the file keep them apart.
    """
    tenants: dict[str, str] = {}
    bodies: dict[tuple[int, str], JsonObject | None] = {}
    for record in reversed(journal.records(replace(query, limit=None))):
        if record.status != _SUCCESS or record.layer in OF_PROXY or record.api not in APIS:
            continue
        if record.prompt is None:
            yield None
            continue
        place = (record.prompt, record.tenant)
        if place not in bodies:
            prompt = PromptCount(record.prompt, record.tenant, record.api, record.model, 1, 1)
            (bodies[place],) = journal.request_bodies([prompt])
        body = bodies[place]
        if body is None:
            yield None
            continue
        line: JsonObject = {
            "custom_id": record.request_id,
            "method": "POST",
            "url": APIS[record.api].path,
            "time": record.time,
            "layer": record.layer,
            "service_tier": record.service_tier,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.reused_tokens,
            "written_5m": record.written_5m,
            "written_1h": record.written_1h,
            "completion_tokens": record.completion_tokens,
            "cost": record.cost,
            "tags": record.tags,
            "body": body,
        }
        if record.tenant != "public":
            name = tenants.setdefault(record.tenant, f"tenant-{len(tenants) + 1}")
            line |= {"client": name, "headers": {"authorization": name}}
        yield dumps(line) + b"\n"
