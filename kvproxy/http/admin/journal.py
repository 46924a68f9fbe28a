"""Routes of the journal: the declared operations, and the stream of new records."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kvproxy.http.admin.operation_routes import declared_route, operation_route
from kvproxy.http.services import Services, services
from kvproxy.index.store.observations import Observations
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.record import RecordWithQuestions
from kvproxy.journal.wrong_hits import HitVerdicts
from kvproxy.operations.journal import JournalAccess
from kvproxy.operations.journal_reports import JOURNAL_OPERATIONS
from kvproxy.operations.record_query import RecordQuery

_MAX_LIVE = 200
"""Maximum records per event of the live log, newest first. The event's field `more` is true if this limit is reached."""
_POLL_SECONDS = 0.5  # The journal is written twice a second.
_KEEPALIVE_SECONDS = 10.0
_TIME = "%Y-%m-%d %H:%M:%S UTC"
T = TypeVar("T")


async def _read_journal(app: Services, work: Callable[[JournalReader], T]) -> T:
    return await asyncio.to_thread(app.journal.read, work)


def _access(app: Services, reader: JournalReader) -> JournalAccess:
    return JournalAccess(
        reader,
        app.settings.journal,
        lambda: contextlib.nullcontext(app.cache.store),
        lambda: _hit_verdicts(app.cache.store.observations),
        lambda time: f"{datetime.fromtimestamp(time, UTC):{_TIME}}",
    )


def _hit_verdicts(observations: Observations) -> HitVerdicts:
    return HitVerdicts(observations.summary(), observations.all_rejected_entries())


async def _perform(request: Request, run: Callable[[JournalAccess], object]) -> object:
    app = services(request)
    return await _read_journal(app, lambda reader: run(_access(app, reader)))


async def live(request: Request, query: RecordQuery) -> Response:
    """Stream new records as server-sent events, beginning after the record number `after`, or with the next record.

    The first event, `hello`, has the number of the newest record. Events `records` follow until the proxy stops.
    """
    app, query = services(request), replace(query, limit=_MAX_LIVE)
    newest = await _read_journal(app, lambda reader: reader.newest_number())
    last = newest if query.after is None else min(query.after, newest)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_live_events(app, query, last, newest), media_type="text/event-stream", headers=headers)


async def _live_events(app: Services, query: RecordQuery, last: int, newest: int) -> AsyncIterator[bytes]:
    yield b'event: hello\ndata: {"newest": %d}\n\n' % newest
    last_sent = time.monotonic()
    while not app.deadlines.stopping:

        def new(reader: JournalReader, last: int = last) -> tuple[list[RecordWithQuestions], int]:
            newest = reader.newest_number()
            fresh = [] if newest == last else reader.records(replace(query, after=last, before=newest + 1))
            return _access(app, reader).with_questions(fresh), newest

        rows, last = await _read_journal(app, new)
        if rows:
            last_sent = time.monotonic()
            event = {"records": rows, "more": len(rows) == _MAX_LIVE}
            yield b"event: records\nid: %d\ndata: %b\n\n" % (last, orjson.dumps(event))
        elif time.monotonic() - last_sent > _KEEPALIVE_SECONDS:
            last_sent = time.monotonic()
            yield b": still here\n\n"
        await asyncio.sleep(_POLL_SECONDS)


ROUTES = [
    declared_route("GET", "/log/live", RecordQuery, live),
    *(operation_route(operation, _perform) for operation in JOURNAL_OPERATIONS),
]
