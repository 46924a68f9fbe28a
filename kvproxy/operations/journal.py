"""The operation that lists records of the journal, and access to a journal in files or by the routes of a proxy."""

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from kvproxy.apis.json import JsonObject, as_object, loads
from kvproxy.errors import InvalidRequest, KvproxyError, SettingsError
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store_location import is_url
from kvproxy.installation.checks.configured_store import open_configured_store, store_exists
from kvproxy.installation.data_folder import running_proxy
from kvproxy.journal.daily_sums import table_of_teams
from kvproxy.journal.databases.computed_fields import NumberedRecords, matching_numbers
from kvproxy.journal.groups import Group, RequestGroup
from kvproxy.journal.reader import JournalReader, LayerCounts, PromptCount, RecordFilter
from kvproxy.journal.record import Record, RecordWithQuestions
from kvproxy.journal.request_regions import request_body_of
from kvproxy.journal.spending import record_costs, with_costs
from kvproxy.operations.client import ConfiguredUrl, ProxyClient, client_of_running_proxy, configured_url, names_folder
from kvproxy.operations.operation import Operation, Parameters, Result, RowLimits, operation
from kvproxy.operations.record_query import RecordQuery
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import Settings, load_settings
from kvproxy.settings.journal import JournalSettings
from kvproxy.settings.tree import config_file

if TYPE_CHECKING:
    from kvproxy.index.store import Store
    from kvproxy.journal.wrong_hits import HitVerdicts

ROWS = RowLimits(default=100, most=1_000)
PAGE = 1_000
_SCANNED = 5_000


@dataclass(frozen=True, slots=True)
class JournalAccess:
    """A journal with its store.

    Attributes:
        open_store: opens the store of responses; None if it does not exist.
        hit_verdicts: see `savings_report`.
        format_time: formats seconds since the epoch.
    """

    reader: JournalReader
    settings: JournalSettings
    open_store: Callable[[], "AbstractContextManager[Store | None]"]
    hit_verdicts: "Callable[[], HitVerdicts | None]"
    format_time: Callable[[float], str]

    def stored_questions(self, ids: Sequence[str]) -> dict[str, str]:
        if not ids:
            return {}
        # Records are useful even if the store is unavailable, or without its keys.
        with contextlib.suppress(KvproxyError, CacheStoreError), self.open_store() as store:
            if store is not None:
                return {id: question.prompt for id, question in store.questions(sorted(set(ids))).items()}
        return {}

    def with_questions(self, records: Sequence[Record]) -> list[RecordWithQuestions]:
        rows = self.reader.with_questions(records, self.stored_questions)
        from kvproxy.journal.sessions.session_reader import SessionReader

        prices = ModelPrices(self.settings)
        turns = SessionReader(self.reader, prices).turns_of_records([row.number for row in rows])
        costs = record_costs(rows, turns, prices)
        for row in rows:
            row.cost = costs.get(row.number)
            if (turn := turns.get(row.number)) is not None:
                row.written_5m, row.written_1h = turn.written_5m, turn.written_1h
                row.lost, row.lost_tokens, row.lost_cost = turn.lost, turn.lost_tokens, turn.lost_cost
                row.first_change, row.session = turn.first_change, turn.session
        return rows

    def find(self, id_or_number: str) -> RecordWithQuestions:
        """Return a record, see `JournalReader.find`. Raises NotFound."""
        (row,) = self.with_questions([self.reader.find(id_or_number)])
        return row


@operation("GET", "/log", rows=ROWS)
def list_records(journal: JournalAccess, query: RecordQuery) -> list[RecordWithQuestions]:
    """List the records that match the filters, newest first; `before` and `after` limit the record numbers."""
    return journal.with_questions(journal.reader.records(query))


def prices_may_differ(settings: Settings) -> bool:
    """Return whether a shared journal is read with settings without a file and prices: proxies may have other prices."""
    is_local = not is_url(settings.journal_location)
    return not (is_local or settings.journal.prices or config_file(settings.data).is_file())


class DirectJournal:
    """Reads the journal of a data folder, in its file or in PostgreSQL. Raises NotFound without a journal.

    An argument `request` is a request id, its beginning, or a record number.
    """

    def __init__(
        self, data: Path | None, format_time: Callable[[float], str] = str, *, store: str | None = None
    ) -> None:
        self._settings = load_settings(data=data, store=store)
        self.reader = JournalReader(self._settings.journal_location)
        weakref.finalize(self, self.reader.close)
        self._access = JournalAccess(
            self.reader, self._settings.journal, self._open_store, self._hit_verdicts, format_time
        )

    @property
    def prices_may_differ(self) -> bool:
        return prices_may_differ(self._settings)

    def perform(self, operation: Operation[JournalAccess, Parameters, Result], parameters: Parameters) -> Result:
        return operation(self._access, parameters)

    def records(self, query: RecordQuery) -> list[RecordWithQuestions]:
        return self._access.with_questions(self.reader.records(self._in_sql(query)))

    def layer_counts(self, query: RecordQuery) -> LayerCounts:
        return self.reader.layer_counts(self._in_sql(query), query.start)

    def recorded_names(self, column: Literal["model", "tag", "team", "tenant"]) -> set[str]:
        """Return the models, tags, teams, or tenants of all requests, also of those whose records are removed."""
        table = table_of_teams("totals") if column == "team" else "totals"
        return {name for (name,) in self.reader.rows(f"select distinct {column} from {table} where {column} <> ''", [])}

    def record(self, request: str) -> RecordWithQuestions:
        return self._access.find(request)

    def groups(
        self, query: RecordQuery, by: Group, *, order: Literal["requests", "backend", "cost"], limit: int | None
    ) -> list[RequestGroup]:
        """Return the groups with the most requests, seconds of the backend, or the highest cost, as `order` selects.

        The name of a group of equal prompts is their question. Groups of unknown cost are the last ones in order of cost.
        """
        prices, chosen = ModelPrices(self._settings.journal), self._in_sql(query)
        if order == "cost":
            every = self.reader.groups(chosen, by, order="backend", limit=None)
            rows = with_costs(self.reader, chosen, by, every, prices)
            rows = sorted(rows, key=lambda row: -1.0 if row.cost is None else row.cost, reverse=True)[:limit]
        else:
            rows = with_costs(self.reader, chosen, by, self.reader.groups(chosen, by, order=order, limit=limit), prices)
        if by != "prompt":
            return rows
        prompts = self._access.stored_questions([row.entry for row in rows if row.entry is not None])
        first: dict[str, RequestGroup] = {}
        named = [replace(row, name=prompts.get(row.entry or "", row.name)) for row in rows]
        return [replace(row, differs_in=self._differing_fields(row, first.setdefault(row.name, row))) for row in named]

    def _in_sql(self, query: RecordQuery) -> RecordFilter:
        """Return a filter that the database can apply, also if the condition names fields that it lacks."""
        if query.where is None or not self.reader.lacks_fields_of(query.where):
            return query
        numbers: list[int] = []
        for found in matching_numbers(query.where, self._pages(replace(query, where=None))):
            numbers += found
            if query.limit is not None and len(numbers) >= query.limit:
                break
        return NumberedRecords(numbers, query.layer, query.limit)

    def _pages(self, query: RecordQuery) -> Iterator[list[RecordWithQuestions]]:
        while rows := self.records(replace(query, limit=_SCANNED)):
            yield rows
            query = replace(query, before=rows[-1].number)

    def _differing_fields(self, row: RequestGroup, other: RequestGroup) -> tuple[str, ...]:
        if row.prompt is None or other.prompt is None or row.prompt == other.prompt:
            return ()
        regions, others = self.reader.regions(row.prompt), self.reader.regions(other.prompt)
        return () if regions is None or others is None else tuple(regions.differing_regions(others))

    def _hit_verdicts(self) -> "HitVerdicts | None":
        from kvproxy.index.store import open_observations
        from kvproxy.journal.wrong_hits import HitVerdicts

        if not store_exists(self._settings):
            return None
        with contextlib.closing(open_observations(self._settings.store_location)) as observations:
            return HitVerdicts(observations.summary(), observations.all_rejected_entries())

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

    def _open_store(self) -> "AbstractContextManager[Store | None]":
        return open_configured_store(self._settings) if store_exists(self._settings) else contextlib.nullcontext()


class RemoteJournal:
    """The journal of a remote proxy; see `DirectJournal`."""

    def __init__(self, client: ProxyClient) -> None:
        self._client = client

    def perform(self, operation: Operation[JournalAccess, Parameters, Result], parameters: Parameters) -> Result:
        return self._client.perform(operation, parameters)

    def records(self, query: RecordQuery) -> list[RecordWithQuestions]:
        records: list[RecordWithQuestions] = []
        before = query.before
        while query.limit is None or len(records) < query.limit:
            limit = min(PAGE, PAGE if query.limit is None else query.limit - len(records))
            rows = self.perform(list_records, replace(query, limit=limit, before=before))
            records += rows
            if len(rows) < limit:
                break
            before = rows[-1].number
        return records


JournalClient: TypeAlias = DirectJournal | RemoteJournal


def open_journal(
    url: str,
    token: str | None,
    data: Path | None,
    format_time: Callable[[float], str] = str,
    *,
    store: str | None = None,
) -> JournalClient:
    """Open the journal of the data folder `data`, or of the shared store at a URL. Raises ProxyUnreachable or NotFound.

    Settings that name a data folder count as `data`, unless the user named a URL. Without a folder, open the journal of the
    proxy at the URL. If the URL is `configured_url` and no proxy answers, open the journal of the default data folder.
    """
    if store is not None:
        return DirectJournal(data, format_time, store=store)
    if data is None and isinstance(url, ConfiguredUrl) and names_folder(load_settings()):
        return DirectJournal(None, format_time)
    if data is None and _reads_file_of_running_proxy(url):
        return DirectJournal(load_settings().data, format_time)
    if data is None and (client := client_of_running_proxy(url, token)) is not None:
        health = client.get("/health")
        folder = health.get("data")
        if isinstance(folder, str) and _has_journal(Path(folder), health.get("journal")):
            return DirectJournal(Path(folder), format_time)
        # The folder is on another machine, or hidden from this client.
        if isinstance(folder, str) or url != configured_url():
            return RemoteJournal(client)
    return DirectJournal(load_settings(data=data).data, format_time)


def _reads_file_of_running_proxy(url: str) -> bool:
    """Return whether the proxy at the URL runs here and writes the file of the settings, so that no request must tell it."""
    try:
        settings = load_settings()
    except SettingsError:
        # A URL that the user named needs no valid settings.
        return False
    proxy, file = running_proxy(settings.data), settings.journal_file
    return proxy is not None and file is not None and proxy.journal == file and url == configured_url()


def open_direct_journal(
    url: str, token: str | None, data: Path | None, purpose: str, *, store: str | None = None
) -> DirectJournal:
    """Open a journal as `open_journal` does. Raises InvalidRequest if `purpose` cannot be served over HTTP.

    Raises Unauthorized without the admin token, for which a proxy hides its folder.
    """
    journal = open_journal(url, token, data, store=store)
    if isinstance(journal, RemoteJournal):
        journal.records(RecordQuery(limit=1))
        raise InvalidRequest(
            f"{purpose} reads the journal directly: run it on the machine of {url}, or with the `store` of its settings"
        )
    return journal


def _has_journal(data: Path, journal: object) -> bool:
    try:
        location = load_settings(data=data).journal_location
    except SettingsError:
        return False
    if not is_url(location):
        return location == journal and Path(location).is_file()
    from kvproxy.index.store.postgres.database import display_name

    return display_name(location) == journal
