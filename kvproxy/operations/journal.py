"""Opens the journal of a proxy: its files if they are on this machine, or else its routes."""

import contextlib
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from kvproxy.apis.json import JsonObject, as_object, loads
from kvproxy.errors import InvalidRequest
from kvproxy.index.store import is_url
from kvproxy.installation.checks.configured_store import open_configured_store, store_exists
from kvproxy.journal.reader import JournalReader, PromptCount, RequestGroup
from kvproxy.journal.record import RecordWithQuestions
from kvproxy.journal.record_query import Group, RecordQuery
from kvproxy.journal.request_regions import request_body_of
from kvproxy.journal.sessions.session_reader import Session
from kvproxy.operations.client import ProxyClient, client_of_running_proxy, configured_url
from kvproxy.operations.journal_operations import JournalAccess, explain_record, list_records, list_sessions
from kvproxy.operations.journal_parameters import RecordName, SessionQuery
from kvproxy.operations.operation import Operation, Parameters, Result
from kvproxy.settings import load_settings

if TYPE_CHECKING:
    from kvproxy.index.store import Store

_PAGE = 1_000


class DirectJournal:
    """Reads the journal of a data folder, in its file or in PostgreSQL. Raises NotFound without a journal.

    An argument `request` is a request id, its beginning, or a record number.
    """

    def __init__(self, data: Path, format_time: Callable[[float], str] = str) -> None:
        self._settings = load_settings(data=data)
        self.reader = JournalReader(self._settings.journal_location)
        weakref.finalize(self, self.reader.close)
        self._access = JournalAccess(
            self.reader, self._settings.journal, self._open_store, self._comparison_counts, format_time
        )

    def perform(self, operation: Operation[JournalAccess, Parameters, Result], parameters: Parameters) -> Result:
        return operation(self._access, parameters)

    def records(self, query: RecordQuery) -> list[RecordWithQuestions]:
        return list_records(self._access, query)

    def record(self, request: str) -> RecordWithQuestions:
        return self._access.find(request)

    def sessions(self, query: SessionQuery) -> list[Session]:
        return list_sessions(self._access, query)

    def groups(
        self, query: RecordQuery, by: Group, *, order: Literal["requests", "backend"], limit: int | None
    ) -> list[RequestGroup]:
        """Return the groups with the most requests, or with the most seconds of the backend, as `order` selects.

        The name of a group of equal prompts is their question.
        """
        rows = self.reader.groups(query, by, order=order, limit=limit)
        if by != "prompt":
            return rows
        prompts = self._access.stored_questions([row.entry for row in rows if row.entry is not None])
        first: dict[str, RequestGroup] = {}
        named = [replace(row, name=prompts.get(row.entry or "", row.name)) for row in rows]
        return [replace(row, differs_in=self._differing_fields(row, first.setdefault(row.name, row))) for row in named]

    def _differing_fields(self, row: RequestGroup, other: RequestGroup) -> tuple[str, ...]:
        if row.prompt is None or other.prompt is None or row.prompt == other.prompt:
            return ()
        regions, others = self.reader.regions(row.prompt), self.reader.regions(other.prompt)
        return () if regions is None or others is None else tuple(regions.differing_regions(others))

    def _comparison_counts(self) -> dict[str, int] | None:
        from kvproxy.index.store import open_observations

        if not store_exists(self._settings):
            return None
        with contextlib.closing(open_observations(self._settings.store_location)) as observations:
            return observations.summary()

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

    def _open_store(self) -> "contextlib.AbstractContextManager[Store | None]":
        return open_configured_store(self._settings) if store_exists(self._settings) else contextlib.nullcontext()


class RemoteJournal:
    """The journal of a remote proxy; see `DirectJournal`."""

    def __init__(self, client: ProxyClient) -> None:
        self._client = client

    def perform(self, operation: Operation[JournalAccess, Parameters, Result], parameters: Parameters) -> Result:
        return self._client.perform(operation, parameters)

    def records(self, query: RecordQuery) -> list[RecordWithQuestions]:
        found: list[RecordWithQuestions] = []
        before = query.before
        while query.limit is None or len(found) < query.limit:
            limit = min(_PAGE, _PAGE if query.limit is None else query.limit - len(found))
            rows = self.perform(list_records, replace(query, limit=limit, before=before))
            found += rows
            if len(rows) < limit:
                break
            before = rows[-1].number
        return found

    def record(self, request: str) -> RecordWithQuestions:
        found = self.perform(explain_record, RecordName(request))
        record = found.explained.record
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        return RecordWithQuestions(**values, question=found.question, stored_question=found.stored_question)

    def sessions(self, query: SessionQuery) -> list[Session]:
        # A session that continues meanwhile moves to the beginning.
        found: dict[int, Session] = {}
        offset = 0
        while query.limit is None or offset < query.limit:
            limit = _PAGE if query.limit is None else min(_PAGE, query.limit - offset)
            rows = self.perform(list_sessions, replace(query, limit=limit, offset=offset))
            found |= {row.id: row for row in rows}
            offset += len(rows)
            if len(rows) < limit:
                break
        return list(found.values())


JournalClient: TypeAlias = DirectJournal | RemoteJournal


def open_journal(
    url: str, token: str | None, data: Path | None, format_time: Callable[[float], str] = str
) -> JournalClient:
    """Open the journal of the data folder `data`. Raises ProxyUnreachable or NotFound.

    If `data` is None, open the journal of the proxy at the URL. If the URL is `configured_url` and no proxy answers, open
    the journal of the default data folder.
    """
    if data is None and (client := client_of_running_proxy(url, token)) is not None:
        health = client.get("/health")
        folder = health.get("data")
        if isinstance(folder, str) and _has_journal(Path(folder), health.get("journal")):
            return DirectJournal(Path(folder), format_time)
        # The folder is on another machine, or hidden from this client.
        if isinstance(folder, str) or url != configured_url():
            return RemoteJournal(client)
    return DirectJournal(load_settings(data=data).data, format_time)


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
