"""Reads the journal, whether a proxy runs or not."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import Any, Literal, Protocol

from kvproxy.apis.json import JsonObject, as_object, loads
from kvproxy.errors import InvalidRequest, NotFound, StoreUnavailable
from kvproxy.journal.databases.computed_fields import invalid_condition, named_fields
from kvproxy.journal.databases.database import InvalidQuery, JournalFailed
from kvproxy.journal.databases.open_database import open_to_read
from kvproxy.journal.groups import STANDARD_TIER, Group, RequestGroup, SumsGroup
from kvproxy.journal.record import CLIENT_OR_TENANT, BackendPrompt, Record, RecordWithQuestions
from kvproxy.journal.request_regions import Regions
from kvproxy.journal.schema import StringIds, short_key
from kvproxy.journal.sums_filter import SumsFilter
from kvproxy.layers import CACHES


class RecordFilter(Protocol):
    """Selects records.

    Attributes:
        layer: the layer of all selected records; None selects several layers.
        limit: maximum number of records, the newest; None has no limit.
    """

    @property
    def layer(self) -> str | None: ...

    @property
    def limit(self) -> int | None: ...

    def sql(self) -> tuple[str, list[object]]:
        """Return a `where` clause over the view `requests`, which is empty without a condition, and its values."""
        ...


_MAX_SAMPLED = 5_000
BACKEND = ("prefix", "forward", "bypass", "revalidated")
"""Values of `Record.layer` for responses of the backend."""
_BEGUN = "layer in ('disconnected', 'error') and status = 200 and reused_tokens is not null"
"""Condition for responses of the backend that began and were not completed."""
# A stream that broke off was paid, too, if its usage arrived.
PAID = f"layer in {(*BACKEND, 'warming', 'disconnected', 'error')} and reason not like 'hit-%'"
PAID += " and (status = 200 or estimated_prompt_tokens is not null)"
"""Condition for requests that the provider bills, including those that the client aborted before the response."""
PAID_PROMPT = "coalesce(prompt_tokens, estimated_prompt_tokens)"
PAID_COMPLETION = "coalesce(completion_tokens, estimated_completion_tokens)"
"""Tokens of requests that have a price: reported, or else estimated."""
OF_PROXY = ("revalidated", "warming")
"""Values of `Record.layer` for requests that no client sent."""
_SPANS = (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 86_400, 604_800)
_MAX_SPANS = 60
_RECORD_FIELDS = tuple(field.name for field in fields(Record))


@dataclass(frozen=True, slots=True)
class PromptCount:
    number: int
    tenant: str
    api: str
    model: str
    requests: int
    cacheable: int


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """Number of requests by layer in time spans of `step` seconds; the first begins at `start` (seconds since the epoch)."""

    start: float
    step: float
    counts: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """Statistics of the requests in consecutive time spans.

    Attributes:
        start, step: start of the first time span (seconds since the epoch), and length of each time span in seconds.
        counts: number of requests in each time span, by layer or reason.
        prompt_tokens, reused_tokens: sums in each time span, for prompts whose reuse the backend reported.
        first_ms: median time to the first byte, by layer or reason.
        cached_ms, backend_ms: median and 95th percentile of the time to the first byte in each time span, for cached responses
            and for responses of the backend; None without a request.
    """

    start: float
    step: float
    counts: dict[str, list[int]]
    prompt_tokens: list[int]
    reused_tokens: list[int]
    first_ms: dict[str, float]
    cached_ms: list[tuple[float, float] | None]
    backend_ms: list[tuple[float, float] | None]


@dataclass(frozen=True, slots=True)
class TotalRow:
    """Sums over the requests of a group with one layer, model, tenant, and UTC day.

    `unreported` requests have unknown tokens, of which `estimated` ones have an estimate. `tiered` ones have a service tier,
    or audio or image tokens.
    `unpaid` ones failed, and cost nothing; those before this sum existed are not among them.
    `saved_seconds` is the duration of original responses minus that of their hits; it is negative if the hits took longer.
    `partial_hits` had some cached inputs of an array, with `inputs_cached_tokens`; those of `unreported_partial_hits` are
    unknown.
    """

    name: str
    layer: str
    model: str
    tenant: str
    day: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    reused_tokens: int
    saved_seconds: float
    unreported: int
    estimated: int
    estimated_prompt_tokens: int
    estimated_completion_tokens: int
    tiered: int
    unpaid: int
    partial_hits: int
    unreported_partial_hits: int
    inputs_cached_tokens: int


class JournalReader:
    """Reads a journal in a file or at a URL of PostgreSQL. Raises NotFound if it does not exist."""

    def __init__(self, where: str | Path) -> None:
        self._database = open_to_read(where)
        self.name = self._database.name
        self._strings = StringIds(self._database)

    def close(self) -> None:
        self._database.close()

    def records(self, query: RecordFilter) -> list[Record]:
        condition, values = query.sql()
        limit = "" if query.limit is None else f" limit {int(query.limit)}"
        return self._select(f"{condition} order by number desc{limit}", values)

    def latest(self, limit: int) -> list[Record]:
        """Return the last `limit` records, newest first."""
        return self._select(f" order by number desc limit {int(limit)}", [])

    def find(self, id_or_number: str) -> Record:
        """Return the last record with an id that its client received, the beginning of a request id, or a record number.

        Such an id is the request id, the upstream's own request id, or the id of the response. Raises NotFound, or
        InvalidRequest if several request ids have this beginning.
        """
        ids = "? in (request_id, upstream_request_id, response_id)"
        tries: list[tuple[str, object]] = [(ids, id_or_number)]
        if id_or_number.isdecimal() and len(id_or_number) < 16:
            tries.append(("number = ?", int(id_or_number)))
        for condition, value in tries:
            values = [value] * condition.count("?")
            if records := self._select(f" where {condition} order by number desc limit 1", values):
                return records[0]
        begins = "select distinct request_id from requests where substr(request_id, 1, length(?)) = ? limit 2"
        found = self.rows(begins, [id_or_number, id_or_number])
        if len(found) > 1:
            raise InvalidRequest(f"several ids begin with {id_or_number[:80]!r}: give more digits", param="request")
        if found:
            return self.find(found[0][0])
        raise NotFound(f"no request {id_or_number[:80]!r} in {self.name}: kvproxy log lists them")

    def groups(
        self, query: RecordFilter, by: Group, *, order: Literal["requests", "backend"], limit: int | None
    ) -> list[RequestGroup]:
        """Return sums by group; the groups with the most requests, or with the most time of the backend, come first.

        `limit` is the maximum number of groups; None returns all.
        """
        condition, values = query.sql()
        cached = f"(layer in {CACHES} or layer = 'warming' and reason like 'hit-%')"
        backend = f"(layer in {BACKEND} or {_BEGUN} or layer = 'warming' and status < 400 and reason not like 'hit-%')"
        spent = f"sum(case when {backend} then total_ms else 0 end)"
        computed, begun = f"coalesce({PAID_PROMPT}, 0) - coalesce(reused_tokens, 0)", f"({backend} or {PAID})"
        source, group = self._source_of(by)
        name = "coalesce(max(text), 'prompt = ' || prompt || ' (no text recorded)')" if by == "prompt" else group
        # The entry of a record may belong to another prompt (semantic hits), or be replaced.
        entry = "(select p.entry from prompts p where p.number = prompt)" if by == "prompt" else "null"
        condition = _without_warming(condition, query)
        # Revalidations cost the backend, but are not requests of clients.
        requests = "count(*)" if by in ("layer", "reason") else "count(*) filter (where layer <> 'revalidated')"
        sql = (
            f"select {name}, {entry}, {requests}, count(*) filter (where {cached}),"
            f" sum(case when {begun} then {computed} else 0 end),"
            f" sum(case when {begun} then coalesce({PAID_COMPLETION}, 0) else 0 end),"
            f" {spent} / 1000.0, {'prompt' if by == 'prompt' else 'null'}"
            f" from {source}{condition} and {group} is not null group by {group}"
            f" order by {requests if order == 'requests' else spent} desc, 1{'' if limit is None else f' limit {int(limit)}'}"
        )
        return [RequestGroup(str(row[0]), *row[1:]) for row in self.rows(sql, values)]

    def _source_of(self, by: Group) -> tuple[str, str]:
        """Return the `from` clause and the column of a group's requests. Raises InvalidRequest without the column."""
        if by == "proxy" and by not in self._database.columns:
            raise InvalidRequest("a journal in a file has one proxy: records name theirs in a PostgreSQL store only")
        if by == "tag":
            return self._database.tag_rows_sql(), "value"
        tier = f"coalesce(service_tier, '{STANDARD_TIER}')"
        named = {"day": self._database.utc_day_sql(), "client": CLIENT_OR_TENANT, "service_tier": tier}
        return "requests", named.get(by, by)

    def paid_rows(self, query: RecordFilter, by: Group, keys: Sequence[str | int]) -> Iterator[tuple[Any, ...]]:
        """Yield the paid requests in groups, given their keys: the key, the time, the model, and numbers of tokens.

        The numbers are: prompt, response, reused, and written tokens (for five minutes, for one hour), and the pause in seconds.
        The service tier, and the audio and image tokens follow. With many keys, the paid requests of other groups are included.
        """
        condition, values = query.sql()
        source, group = self._source_of(by)
        columns = f"number, time, model, {PAID_PROMPT} as prompt_tokens, {PAID_COMPLETION} as completion_tokens"
        columns += ", reused_tokens, service_tier, modalities"
        # One scan of all groups takes less time than several scans of some.
        chosen = keys if len(keys) <= _MAX_SAMPLED else ()
        of_groups = f" and {group} in ({', '.join('?' * len(chosen))})" if chosen else ""
        sql = (
            "select r.key_of_group, r.time, r.model, r.prompt_tokens, r.completion_tokens, r.reused_tokens,"
            f" t.written_5m, t.written_1h, t.pause, r.service_tier, r.modalities"
            f" from (select {group} as key_of_group, {columns} from {source}"
            f"{_without_warming(condition, query)} and {PAID}{of_groups}) r left join turns t on t.number = r.number"
        )
        yield from self.rows(sql, [*values, *chosen]) if keys else ()

    def layer_counts(self, query: RecordFilter, since: float | None = None) -> LayerCounts:
        """Count requests by layer, in time spans from `since` on, or from the first record; without it, from the first match."""
        condition, values = query.sql()
        condition = _without_warming(condition, query)
        first, last = self.rows(f"select min(time), max(time) from requests{condition}", values)[0]
        if first is None:
            return LayerCounts(0.0, 1.0, {})
        if since is not None:
            (oldest,) = self.rows("select min(time) from requests", [])[0]
            first = min(first, max(since, oldest))
        step = next((step for step in _SPANS if (last - first) / step < _MAX_SPANS - 1), _SPANS[-1])
        start = first // step
        counts: dict[str, list[int]] = {}
        sql = f"select layer, {self._database.integer_part_sql('time / ?')}, count(*) from requests{condition} group by 1, 2"
        for layer, place, count in self.rows(sql, [step, *values]):
            counts.setdefault(layer, [0] * int(last // step - start + 1))[int(place - start)] += count
        return LayerCounts(start * step, step, counts)

    def prompt_counts(self) -> list[PromptCount]:
        """Count the successful requests of clients with each prompt, the most frequent first."""
        sql = (
            "select prompt, tenant, api, model, count(*), sum(case when reason in ('asked-sample', 'uncacheable',"
            " 'bypass-rule') then 0 else 1 end) from requests where prompt is not null and status = 200"
            f" and layer not in {OF_PROXY} group by prompt, tenant, api, model order by 5 desc, 1"
        )
        return [PromptCount(*row) for row in self.rows(sql, [])]

    def series(
        self,
        by: Literal["layer", "reason"],
        start: float,
        step: float,
        spans: int,
        period: tuple[float, float] = (-inf, inf),
    ) -> TimeSeries:
        """Return statistics of the clients' requests in `spans` time spans, from `start` (seconds since the epoch) on.

        Only requests in the `period` count, from its first time until before its last one.
        """
        begin, end = max(start, period[0]), min(start + step * spans, period[1])
        first, last = self.first_number_since(begin), self.first_number_since(end)
        condition = f" where number >= ? and time >= ? and time < ? and layer not in {OF_PROXY}"
        values: list[object] = [start, step, first, begin, end]
        place_sql = self._database.integer_part_sql("(time - ?) / ?")
        reported = f"(layer in {BACKEND} or {_BEGUN}) and reused_tokens is not null"
        sql = (
            f"select {by}, {place_sql}, count(*), sum(case when {reported} then prompt_tokens else 0 end),"
            f" sum(case when {reported} then reused_tokens else 0 end) from requests{condition} group by 1, 2"
        )
        counts: dict[str, list[int]] = {}
        prompt_tokens, reused_tokens = [0] * spans, [0] * spans
        for name, place, count, prompt, reused in self.rows(sql, values):
            place = min(place, spans - 1)
            counts.setdefault(name, [0] * spans)[place] += count
            prompt_tokens[place] += prompt
            reused_tokens[place] += reused
        condition += " and first_ms is not null and number % ? = 0"
        sql = f"select {by}, {place_sql}, layer, first_ms from requests{condition}"
        times: dict[str, list[float]] = {}
        cached: list[list[float]] = [[] for _ in range(spans)]
        backend: list[list[float]] = [[] for _ in range(spans)]
        for name, place, layer, milliseconds in self.rows(sql, [*values, max(1, (last - first) // _MAX_SAMPLED)]):
            times.setdefault(name, []).append(milliseconds)
            if layer in CACHES or layer in BACKEND:
                (cached if layer in CACHES else backend)[min(place, spans - 1)].append(milliseconds)
        first_ms = {name: round(median(samples), 3) for name, samples in times.items()}
        cached_ms, backend_ms = list(map(_median_and_p95, cached)), list(map(_median_and_p95, backend))
        return TimeSeries(start, step, counts, prompt_tokens, reused_tokens, first_ms, cached_ms, backend_ms)

    def first_number_since(self, time: float) -> int:
        """Return the number of the first record whose request ended at `time` (seconds since the epoch) or later."""
        least, most = self.rows("select min(number), max(number) + 1 from records", [])[0]
        sql = "select time + coalesce(total_us, 0) / 1e6 from records where number >= ? order by number limit 1"
        low, high = least or 0, most or 0
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.rows(sql, [middle])[0][0] >= time else (middle + 1, high)
        return int(low)

    def newest_number(self) -> int:
        return int(self.rows("select max(number) from records", [])[0][0] or 0)

    def models(self) -> list[str]:
        """Return the names of all models in the sums of requests."""
        return [name for (name,) in self.rows("select distinct model from totals where model <> '' order by 1", [])]

    def totals(self, by: SumsGroup | Literal["team"], selection: SumsFilter = SumsFilter()) -> list[TotalRow]:
        """Return the sums of each group, model, tenant, layer, and UTC day; by team, those of requests with a team."""
        condition, values = selection.sql()
        sums = ", ".join(f"sum({column.name})" for column in fields(TotalRow)[5:])
        compare = "<>" if by == "tag" and selection.tag is None else "="
        where = f"{selection.table('totals', by)} where tag {compare} ? and {condition}"
        sql = f"select {by}, layer, model, tenant, day, {sums} from {where} group by 1, 2, 3, 4, 5"
        return [TotalRow(*row) for row in self.rows(sql, [selection.tag or "", *values])]

    def last_uses(self, of: Literal["client", "team"] = "client") -> dict[str, float]:
        """Return the time of the last request of each client or team (seconds since the epoch), by its name."""
        sql = f"select n.name, max(r.time) from records r join names n on n.number = r.{of} group by n.name"
        return dict(self.rows(sql, []))

    def backend_prompts(self) -> Iterator[BackendPrompt]:
        """Yield the prompts that reached the backend, oldest first."""
        sql = (
            "select r.time, r.tenant, t.session, r.prompt_tokens, coalesce(r.completion_tokens, 0), r.reused_tokens,"
            " p.regions, p.shape, s.sizes from requests r join turns t on t.number = r.number"
            " join prompts p on p.number = r.prompt join prompt_sizes s on s.prompt = p.number"
            " where p.regions is not null order by r.number"
        )
        for time, tenant, session, prompt, response, reused, digests, shape, sizes in self.rows(sql, []):
            regions = self._strings.regions(digests, shape, sizes)
            yield BackendPrompt(time, tenant, session, prompt, response, reused, regions)

    def regions(self, prompt_number: int) -> Regions | None:
        rows = self.rows("select regions, shape from prompts where number = ? and regions is not null", [prompt_number])
        return self._strings.regions(*rows[0]) if rows else None

    def prompts_of(self, records: Sequence[int]) -> dict[int, int]:
        """Return the numbers of the prompts of records by their number; not each record has a prompt."""
        marks = ", ".join("?" * len(records))
        sql = f"select number, prompt from records where prompt is not null and number in ({marks})"
        return dict(self.rows(sql, records))

    def regions_before(self, record: Record, num_records: int) -> list[tuple[int, Regions]]:
        """Return number and regions of the other prompts of the last `num_records` records before a record, newest first."""
        sql = (
            "select p.number, p.regions, p.shape from (select number, prompt from records where number < ? and prompt <> ?"
            " order by number desc limit ?) r join prompts p on p.number = r.prompt where p.regions is not null"
            " group by p.number order by max(r.number) desc"
        )
        rows = self.rows(sql, [record.number, record.prompt, num_records])
        return [(number, self._strings.regions(digests, shape)) for number, digests, shape in rows]

    def last_record_before(self, record_number: int, prompt_number: int, *, unstored: bool = False) -> Record | None:
        """Return the last record of a prompt before the record `record_number`; `unstored`: one of an unstored response."""
        condition = " where number < ? and prompt = ?" + (" and not_stored is not null" if unstored else "")
        latest = self._select(f"{condition} order by number desc limit 1", [record_number, prompt_number])
        return next(iter(latest), None)

    def _select(self, clauses: str, values: Sequence[object]) -> list[Record]:
        sql = f"select {', '.join(self._database.columns)} from requests{clauses}"
        return [Record(*row) for row in self.rows(sql, values)]

    def entry_id(self, prompt_number: int) -> str | None:
        """Return the id of the stored response to a prompt."""
        rows = self.rows("select entry from prompts where number = ?", [prompt_number])
        return rows[0][0] if rows else None

    def entry_ids(self, prompt_numbers: Sequence[int]) -> dict[int, str]:
        """Return the ids of the stored responses to prompts, by the prompt's number."""
        return self._prompt_values("number", "entry", prompt_numbers)

    def with_questions(
        self, records: Sequence[Record], stored_questions: Callable[[list[str]], Mapping[str, str]]
    ) -> list[RecordWithQuestions]:
        """Add questions to records; `stored_questions` returns the questions of stored responses, given their ids."""
        prompts = sorted({record.prompt for record in records if record.prompt is not None and record.text is None})
        entries = self._prompt_values("number", "entry", prompts)
        ids = {id for record in records for id in (record.entry, record.near) if id is not None}
        questions = dict(stored_questions(sorted(ids.union(entries.values()))))
        keys = {short_key(id): id for id in sorted(ids - questions.keys())}
        questions |= {keys[key]: text for key, text in self._prompt_values("key", "text", list(keys)).items()}
        rows = []
        for record in records:
            # The entry of a semantic hit has another question. The entry of another record may have been replaced.
            own = None if record.layer == "semantic" else questions.get(record.entry or "")
            question = record.text or own or questions.get(entries.get(record.prompt or 0, ""))
            near = record.near or (record.entry if record.layer == "semantic" else None)
            values = {name: getattr(record, name) for name in _RECORD_FIELDS}
            stored_question = questions.get(near or "")
            rows.append(RecordWithQuestions(**values, question=question, stored_question=stored_question))
        return rows

    def _prompt_values(self, column: str, value: str, wanted: Sequence[object]) -> dict[Any, str]:
        texts: dict[Any, str] = {}
        for start in range(0, len(wanted), _MAX_SAMPLED):
            part = wanted[start : start + _MAX_SAMPLED]
            marks = ", ".join("?" * len(part))
            sql = f"select {column}, {value} from prompts where {value} is not null and {column} in ({marks})"
            texts |= dict(self.rows(sql, part))
        return texts

    def contents(self, prompt_number: int) -> JsonObject | None:
        """Return the contents of a prompt's regions by name; None if the setting `journal.text` does not store them."""
        rows = self.rows("select whole from prompts where number = ? and whole is not null", [prompt_number])
        return as_object(loads(zlib.decompress(rows[0][0]))) if rows else None

    def lacks_fields_of(self, condition: str) -> bool:
        """Return whether an SQL condition names fields that the database lacks: computed ones, and `proxy` in a file."""
        return not set(named_fields(condition)) <= set(self._database.columns)

    def rows(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of an SQL query. Raises InvalidRequest for invalid SQL, KvproxyError for an unreadable journal."""
        try:
            return self._database.rows(sql, values)
        except InvalidQuery as error:
            raise invalid_condition(error) from None
        except JournalFailed as error:
            raise StoreUnavailable(f"cannot read the journal {self.name}: {error}") from None


def _median_and_p95(values: list[float]) -> tuple[float, float] | None:
    if not values:
        return None
    return round(median(values), 3), round(sorted(values)[ceil(0.95 * len(values)) - 1], 3)


def _without_warming(condition: str, query: RecordFilter) -> str:
    condition = condition or " where true"
    return condition if query.layer == "warming" else f"{condition} and layer <> 'warming'"
