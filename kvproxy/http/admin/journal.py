import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal, TypeVar, get_args

import orjson
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kvproxy.errors import InvalidRequest
from kvproxy.flow.explain import region_loader
from kvproxy.http.admin.replies import fields_of, parse_choice, parse_duration, parse_number, reply
from kvproxy.http.services import Services, services
from kvproxy.index.errors import CacheStoreError
from kvproxy.journal.miss_explanation import explain_in_sentences, explain_miss
from kvproxy.journal.reader import JournalReader, RecordQuery, SavingsGroup
from kvproxy.journal.reasons import REASONS, check_reason_prefix, meaning_of_reason
from kvproxy.journal.record import Layer, Record, RecordWithQuestions
from kvproxy.journal.savings import first_utc_day, savings_report
from kvproxy.journal.sessions.session_reader import SessionReader, turn_tree
from kvproxy.providers.prices import ModelPrices

_MAX_ROWS = 1_000
_MAX_LIVE = 200
"""Maximum records per event of the live log, newest first. The event's field `more` is true if this limit is reached."""
_MAX_SPANS = 1_000
_POLL_SECONDS = 0.5  # The journal is written twice a second.
_KEEPALIVE_SECONDS = 10.0
_TIME = "%Y-%m-%d %H:%M:%S UTC"
_SAVINGS_GROUPS: tuple[SavingsGroup, ...] = get_args(SavingsGroup)
T = TypeVar("T")


def _parse_query(query: QueryParams) -> RecordQuery:
    layer = parse_choice(query, "layer", get_args(Layer), "") if query.get("layer") else None
    check_reason_prefix(query.get("reason"))
    since, before, after = query.get("since"), query.get("before"), query.get("after")
    return RecordQuery(
        since=None if not since else _parse_end_time(query) - parse_duration(since, "since"),
        until=None if not query.get("until") else _parse_end_time(query),
        layer=layer,
        reason=query.get("reason") or None,
        tenant=query.get("tenant") or None,
        model=query.get("model") or None,
        after=None if not after else int(parse_number(after, "after")),
        before=None if not before else int(parse_number(before, "before")),
        judged=query.get("judged") == "true",
        limit=min(_MAX_ROWS, int(parse_number(query.get("limit", "100"), "limit")) or _MAX_ROWS),
    )


def _parse_end_time(query: QueryParams) -> float:
    text = query.get("until")
    return parse_number(text, "until") if text else time.time()


async def _read_journal(app: Services, work: Callable[[JournalReader], T]) -> T:
    return await asyncio.to_thread(app.journal.read, work)


def _add_questions(app: Services, reader: JournalReader, records: list[Record]) -> list[RecordWithQuestions]:
    def stored_questions(ids: list[str]) -> dict[str, str]:
        # Records are useful even if the store is unavailable.
        with contextlib.suppress(CacheStoreError):
            return {id: question.prompt for id, question in app.cache.store.questions(ids).items()} if ids else {}
        return {}

    return reader.with_questions(records, stored_questions)


def _row_fields(row: RecordWithQuestions) -> dict[str, object]:
    return {**fields_of(row.record), "question": row.question, "stored_question": row.stored_question}


async def log(request: Request) -> Response:
    """List the records that match the filters, newest first; `before` and `after` limit the record numbers."""
    app, query = services(request), _parse_query(request.query_params)
    rows = await _read_journal(app, lambda reader: _add_questions(app, reader, reader.records(query)))
    return reply([_row_fields(row) for row in rows])


async def live(request: Request) -> Response:
    """Stream new records as server-sent events, beginning after the record number `after`, or with the next record.

    The first event, `hello`, has the number of the newest record. Events `records` follow until the proxy stops.
    """
    app, query = services(request), replace(_parse_query(request.query_params), limit=_MAX_LIVE)
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
            return _add_questions(app, reader, fresh), newest

        rows, last = await _read_journal(app, new)
        if rows:
            last_sent = time.monotonic()
            event = {"records": [_row_fields(row) for row in rows], "more": len(rows) == _MAX_LIVE}
            yield b"event: records\nid: %d\ndata: %b\n\n" % (last, orjson.dumps(event))
        elif time.monotonic() - last_sent > _KEEPALIVE_SECONDS:
            last_sent = time.monotonic()
            yield b": still here\n\n"
        await asyncio.sleep(_POLL_SECONDS)


async def series(request: Request) -> Response:
    """Count requests and prompt tokens in intervals of `step`, in the period of length `since` before `until` (default: now)."""
    query = request.query_params
    step = parse_duration(query.get("step", "60"), "step")
    since = parse_duration(query.get("since", "3600"), "since")
    by: Literal["layer", "reason"] = "reason" if query.get("by", "layer") == "reason" else "layer"
    if step < 1 or since / step > _MAX_SPANS:
        raise InvalidRequest(f"step is at least 1, and since / step at most {_MAX_SPANS}", param="step")
    # Multiples of the step, so that consecutive requests have the same spans.
    spans = max(1, round(since / step))
    start = (math.ceil(_parse_end_time(query) / step) - spans) * step
    return reply(await _read_journal(services(request), lambda reader: reader.series(by, start, step, spans)))


async def reasons(request: Request) -> Response:
    """Return the meaning of each reason code."""
    return reply(REASONS)


async def explain(request: Request) -> Response:
    """Explain a recorded request, given its id, the beginning of its id, or its record number."""
    app, name = services(request), request.path_params["id"]

    def read_explanation(reader: JournalReader) -> dict[str, object]:
        record = reader.find(name)
        found = explain_miss(reader, record, region_loader(reader, app.cache.store))
        (row,) = _add_questions(app, reader, [record])
        return {
            "explained": found,
            "question": row.question,
            "stored_question": row.stored_question,
            "meaning": meaning_of_reason(record.reason),
            "sentences": explain_in_sentences(found, lambda time: f"{datetime.fromtimestamp(time, UTC):{_TIME}}"),
        }

    return reply(await _read_journal(app, read_explanation))


async def report_savings(request: Request) -> Response:
    """Report savings by layer, tenant, model, tag, or day."""
    app, query = services(request), request.query_params
    by = parse_choice(query, "by", _SAVINGS_GROUPS, "layer")
    since = query.get("since")
    age = parse_duration(since, "since") if since else None
    counts = await asyncio.to_thread(app.cache.store.observations.summary)
    journal = app.settings.journal
    return reply(await _read_journal(app, lambda reader: savings_report(reader, by, journal, counts, age)))


async def sessions(request: Request) -> Response:
    """List the sessions of the last `since` (such as 7d) with at least `turns` turns, newest first; skip `offset` sessions."""
    query = request.query_params
    since, limit = query.get("since"), int(parse_number(query.get("limit", "100"), "limit"))
    start = None if not since else time.time() - parse_duration(since, "since")
    least = int(parse_number(query.get("turns", "1"), "turns"))
    limit, offset = min(_MAX_ROWS, limit), int(parse_number(query.get("offset", "0"), "offset"))
    return reply(await _read_sessions(request, lambda found: found.sessions(limit, start, least, offset)))


async def turns(request: Request) -> Response:
    """List the turns of a session and its sub-agents as a tree, given the session's id or name, or a request's id."""
    name = request.path_params["id"]
    return reply(await _read_sessions(request, lambda found: turn_tree(found.turns(name))))


async def ledger(request: Request) -> Response:
    """Return the sums of reused prompt tokens, and of computed prompt tokens by cause."""
    since = request.query_params.get("since")
    day = first_utc_day(parse_duration(since, "since") if since else None)
    currency = services(request).settings.journal.currency
    return reply(await _read_sessions(request, lambda found: found.ledger(currency, day)))


async def _read_sessions(request: Request, work: Callable[[SessionReader], T]) -> T:
    app = services(request)
    return await _read_journal(app, lambda reader: work(SessionReader(reader, ModelPrices(app.settings.journal))))


ROUTES = [
    Route("/log", log, methods=["GET"]),
    Route("/log/live", live, methods=["GET"]),
    Route("/log/series", series, methods=["GET"]),
    Route("/log/reasons", reasons, methods=["GET"]),
    Route("/log/{id}", explain, methods=["GET"]),
    Route("/savings", report_savings, methods=["GET"]),
    Route("/savings/ledger", ledger, methods=["GET"]),
    Route("/sessions", sessions, methods=["GET"]),
    Route("/sessions/{id}", turns, methods=["GET"]),
]
