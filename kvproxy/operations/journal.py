import contextlib
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from kvproxy.apis.json import JsonObject, as_object, loads
from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.index.store import is_url
from kvproxy.installation.checks.configured_store import open_configured_store, store_exists
from kvproxy.journal.reader import Group, JournalReader, PromptCount, RecordQuery, RequestGroup, SavingsGroup
from kvproxy.journal.reasons import check_reason_prefix
from kvproxy.journal.record import Layer, Record, RecordWithQuestions
from kvproxy.journal.request_regions import request_body_of
from kvproxy.journal.savings import Saving, SavingsReport, WrongHitInterval, first_utc_day, savings_report
from kvproxy.journal.sessions.session_reader import (
    LedgerReport,
    LedgerRow,
    Session,
    SessionReader,
    TreeRow,
    Turn,
    turn_tree,
)
from kvproxy.operations.client import ProxyClient, client_of_running_proxy, configured_url, quote_path_segment
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import load_settings

if TYPE_CHECKING:
    from kvproxy.index.store import Store

_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class ExplanationReport:
    """The cause of a cache miss.

    Attributes:
        document: the fields of `journal.miss_explanation.MissExplanation`.
        sentences: the explanation for people; it quotes requests without escaping them.
        question: None if it is not stored.
    """

    record: Record
    question: str | None
    document: dict[str, Any]
    sentences: list[str]


class DirectJournal:
    """Reads the journal of a data folder, in its file or in PostgreSQL. Raises NotFound without a journal.

    An argument `request` is a request id, its beginning, or a record number.
    """

    def __init__(self, data: Path) -> None:
        self._settings = load_settings(data=data)
        self.reader = JournalReader(self._settings.journal_location)
        weakref.finalize(self, self.reader.close)

    def records(self, query: RecordQuery) -> list[RecordWithQuestions]:
        return self._with_questions(self.reader.records(query))

    def _with_questions(self, records: Sequence[Record]) -> list[RecordWithQuestions]:
        return self.reader.with_questions(records, self._stored_questions)

    def record(self, request: str) -> RecordWithQuestions:
        (found,) = self._with_questions([self.reader.find(request)])
        return found

    def explain(self, request: str, format_time: Callable[[float], str]) -> ExplanationReport:
        # Slow to import.
        from kvproxy.flow.explain import region_loader
        from kvproxy.journal.miss_explanation import explain_in_sentences, explain_miss

        described = self.record(request)
        record = described.record
        with self._open_store() as store:
            found = explain_miss(self.reader, record, region_loader(self.reader, store))
        return ExplanationReport(record, described.question, asdict(found), explain_in_sentences(found, format_time))

    def groups(
        self, query: RecordQuery, by: Group, *, order: Literal["requests", "backend"], limit: int | None
    ) -> list[RequestGroup]:
        """Return the groups with the most requests, or with the most seconds of the backend, as `order` selects.

        The name of a group of equal prompts is their question.
        """
        rows = self.reader.groups(query, by, order=order, limit=limit)
        if by != "prompt":
            return rows
        prompts = self._stored_questions([row.entry for row in rows if row.entry is not None])
        first: dict[str, RequestGroup] = {}
        named = [replace(row, name=prompts.get(row.entry or "", row.name)) for row in rows]
        return [replace(row, differs_in=self._differing_fields(row, first.setdefault(row.name, row))) for row in named]

    def _differing_fields(self, row: RequestGroup, other: RequestGroup) -> tuple[str, ...]:
        if row.prompt is None or other.prompt is None or row.prompt == other.prompt:
            return ()
        regions, others = self.reader.regions(row.prompt), self.reader.regions(other.prompt)
        return () if regions is None or others is None else tuple(regions.differing_regions(others))

    def savings(self, by: SavingsGroup, since: float | None) -> SavingsReport:
        """Return the savings since the UTC day `since` seconds ago; None counts all days."""
        from kvproxy.index.store import open_observations

        counts = None
        if store_exists(self._settings):
            with contextlib.closing(open_observations(self._settings.store_location)) as observations:
                counts = observations.summary()
        return savings_report(self.reader, by, self._settings.journal, counts, since)

    def sessions(self, limit: int | None, since: float | None, min_turns: int) -> list[Session]:
        start = None if since is None else time.time() - since
        return self._sessions().sessions(limit, start, min_turns)

    def session_tree(self, session: str) -> list[TreeRow]:
        """Return the turns of a session. `session` is its id, its name, or the id of one of its requests."""
        return turn_tree(self._sessions().turns(session))

    def ledger(self, since: float | None) -> LedgerReport:
        """Return the reused prompt tokens, and the lost ones by cause, since the UTC day `since` seconds ago (None: all)."""
        return self._sessions().ledger(self._settings.journal.currency, first_utc_day(since))

    def _sessions(self) -> SessionReader:
        return SessionReader(self.reader, ModelPrices(self._settings.journal))

    def request_bodies(self, prompts: Sequence[PromptCount]) -> Generator[JsonObject | None]:
        """Yield the request body of each prompt, from the store or the journal; None if neither has it."""
        with self._open_store() as store:
            for prompt in prompts:
                id, contents = self.reader.entry_id(prompt.number), self.reader.contents(prompt.number)
                entry = None if store is None or id is None else store.get(id)
                # Tenants may share responses, but not the ignored fields of their requests.
                if entry is not None and entry.tenant == prompt.tenant:
                    yield as_object(loads(entry.request))
                else:
                    yield None if contents is None else request_body_of(contents)

    def _stored_questions(self, ids: Sequence[str]) -> dict[str, str]:
        # Records are useful even without the store or its keys.
        with contextlib.suppress(KvproxyError), self._open_store() as store:
            if ids and store is not None:
                return {id: question.prompt for id, question in store.questions(sorted(set(ids))).items()}
        return {}

    def _open_store(self) -> "contextlib.AbstractContextManager[Store | None]":
        return open_configured_store(self._settings) if store_exists(self._settings) else contextlib.nullcontext()


class RemoteJournal:
    """The journal of a remote proxy; see `DirectJournal`."""

    def __init__(self, client: ProxyClient) -> None:
        self._client = client

    def records(self, query: RecordQuery) -> list[RecordWithQuestions]:
        found: list[RecordWithQuestions] = []
        before = query.before
        filters = {name: getattr(query, name) for name in ("layer", "reason", "tenant", "model", "after")}
        since = None if query.since is None else max(0.0, time.time() - query.since)
        while query.limit is None or len(found) < query.limit:
            limit = min(_PAGE, _PAGE if query.limit is None else query.limit - len(found))
            rows = self._client.get("/admin/log", limit=limit, since=since, before=before, **filters)
            found += [RecordWithQuestions(_parse_record(row), row["question"], row["stored_question"]) for row in rows]
            if len(rows) < _PAGE:
                break
            before = found[-1].record.number
        return found

    def record(self, request: str) -> RecordWithQuestions:
        answer = self._client.get(f"/admin/log/{quote_path_segment(request)}")
        record = _parse_record(answer["explained"]["record"])
        return RecordWithQuestions(record, answer["question"], answer["stored_question"])

    def explain(self, request: str, format_time: Callable[[float], str]) -> ExplanationReport:
        answer = self._client.get(f"/admin/log/{quote_path_segment(request)}")
        record = _parse_record(answer["explained"]["record"])
        return ExplanationReport(record, answer["question"], answer["explained"], answer["sentences"])

    def savings(self, by: SavingsGroup, since: float | None) -> SavingsReport:
        report = self._client.get("/admin/savings", by=by, since=since)
        total, wrong = report["total"], report["wrong"]
        return SavingsReport(
            [Saving(**row) for row in report["rows"]],
            None if total is None else Saving(**total),
            None if wrong is None else WrongHitInterval(**wrong),
            report["currency"],
            report["refused"],
            report["semantic"],
        )

    def sessions(self, limit: int | None, since: float | None, min_turns: int) -> list[Session]:
        # A session that continues meanwhile moves to the beginning.
        found: dict[int, Session] = {}
        offset = 0
        while limit is None or offset < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - offset)
            rows = self._client.get("/admin/sessions", limit=size, offset=offset, since=since, turns=min_turns)
            found |= {row["id"]: Session(**row) for row in rows}
            offset += len(rows)
            if len(rows) < size:
                break
        return list(found.values())

    def session_tree(self, session: str) -> list[TreeRow]:
        rows = self._client.get(f"/admin/sessions/{quote_path_segment(session)}")
        return [TreeRow(row["depth"], Turn(**row["turn"])) for row in rows]

    def ledger(self, since: float | None) -> LedgerReport:
        report = self._client.get("/admin/savings/ledger", since=since)
        return LedgerReport(**report | {"rows": [LedgerRow(**row) for row in report["rows"]]})


JournalClient: TypeAlias = DirectJournal | RemoteJournal


def open_journal(url: str, token: str | None, data: Path | None) -> JournalClient:
    """Open the journal of the data folder `data`. Raises ProxyUnreachable or NotFound.

    If `data` is None, open the journal of the proxy at the URL. If the URL is `configured_url` and no proxy answers, open
    the journal of the default data folder.
    """
    if data is None and (client := client_of_running_proxy(url, token)) is not None:
        health = client.get("/health")
        folder = health.get("data")
        if isinstance(folder, str) and _has_journal(Path(folder), health.get("journal")):
            return DirectJournal(Path(folder))
        # The folder is on another machine, or hidden from this client.
        if isinstance(folder, str) or url != configured_url():
            return RemoteJournal(client)
    return DirectJournal(load_settings(data=data).data)


def open_direct_journal(url: str, token: str | None, data: Path | None, purpose: str) -> DirectJournal:
    """Open a journal as `open_journal` does. Raises InvalidRequest if `purpose` cannot be served over HTTP."""
    journal = open_journal(url, token, data)
    if isinstance(journal, RemoteJournal):
        raise InvalidRequest(
            f"{purpose} reads the journal directly: run it on the machine of {url}, or with the `store` of its settings"
        )
    return journal


def _has_journal(data: Path, journal: object) -> bool:
    location = load_settings(data=data).journal_location
    if not is_url(location):
        return location == journal and Path(location).is_file()
    from kvproxy.index.store.postgres.database import display_name

    return display_name(location) == journal


def journal_query(
    since: float | None = None,
    layer: str | None = None,
    reason: str | None = None,
    tenant: str | None = None,
    model: str | None = None,
    where: str | None = None,
    limit: int | None = None,
) -> RecordQuery:
    """Return the query for a command's options. `since` is in seconds before the current time. Raises InvalidRequest."""
    if layer is not None and layer not in get_args(Layer):
        raise InvalidRequest(f"unknown layer {layer[:40]!r}: use one of {', '.join(get_args(Layer))}")
    check_reason_prefix(reason)
    start = None if since is None else time.time() - since
    return RecordQuery(start, layer, reason, tenant, model, where, limit=limit)


def _parse_record(row: dict[str, Any]) -> Record:
    return Record(**{field.name: row[field.name] for field in fields(Record)})
