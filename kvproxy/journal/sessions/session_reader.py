"""Reads sessions, their turns, and their ledger from the journal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from kvproxy.apis.agent_requests import HEADLESS_TAG
from kvproxy.apis.key_fields import MARKER_FIELDS
from kvproxy.errors import NotFound
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.record import OF_TAG
from kvproxy.journal.sessions.changed_text import change_place
from kvproxy.journal.sessions.ledger import (
    CAUSES,
    STORED_TOKEN_HOURS,
    UNREAD_WRITES,
    WARMING,
    cost_of_cause,
    losses_with_cost,
)
from kvproxy.journal.sessions.ledger_report import DiagnosisRow, LedgerReport, RecordedLoss, ledger_of
from kvproxy.journal.sums_filter import SumsFilter
from kvproxy.providers.prices import price_at, price_on
from kvproxy.settings.journal import MILLION, PriceSettings, input_price, price_lost_per_token, storage_price
from kvproxy.units import utc_day

_TURNS = (
    "select t.number, t.session, t.turn, t.parent, (select name from names where number = t.name), r.request_id, r.time,"
    " coalesce(r.total_ms, 0) / 1000.0, t.pause, r.tenant, r.model, r.upstream, r.prompt_tokens,"
    " r.reused_tokens, r.completion_tokens, t.written_5m, t.written_1h, (select name from names where number = t.region),"
    " t.place, (select name from names where number = t.diagnosis), t.agrees,"
    " (select name from names where number = t.keep_warm), case when r.layer = 'warming' then 1 else 0 end,"
    " r.service_tier, r.modalities, r.estimated_completion_tokens, (select name from names where number = t.missing_mark),"
    f" {', '.join(f't.{cause}' for cause in CAUSES)} from turns t join requests r on r.number = t.number"
)
_IS_HEADLESS = f"case when ',' || coalesce(r.tags, '') || ',' like '%,{HEADLESS_TAG},%' then 1 else 0 end"
_PAUSES = (
    f"select t.pause, r.tenant, r.time - t.pause, {_IS_HEADLESS} from turns t join requests r on r.number = t.number"
    " where t.pause is not null and r.api = 'messages' and ',' || coalesce(r.tags, '') || ',' not like '%,keep-warm,%'"
    f" union all select ?, max(r.tenant), max(r.time), max({_IS_HEADLESS}) from turns t join requests r on r.number = t.number"
    " where r.api = 'messages' group by t.session having max(r.time) < ?"
    # A sub-agent that has finished does not pause.
    " and max(case when t.number = t.session then t.parent end) is null"
    " order by 3 desc limit ?"
)
_MAX_PAUSES = 100_000
_OF_TENANT = " and exists (select 1 from names n where n.name = ? and n.number in (r.tenant, r.client))"
_OF_TEAM = " and r.team = (select number from names where name = ?)"
_WITH_MODEL = (
    " and t.session in (select m.session from turns m join records q on q.number = m.number"
    " where q.model = (select number from names where name = ?))"
)
_WITH_TAG = (
    " and t.session in (select m.session from turns m join records q on q.number = m.number"
    f" join names n on n.number = q.tags where {OF_TAG.replace('tags', 'n.name')})"
)
_BATCH = 1_000
"""Sessions or records per query; SQLite limits the number of parameters."""
# A session and its sub-agents, whose first turns have a turn of the session as their parent.
_WITH_AGENTS = (
    "with recursive family(id) as (select cast(? as bigint) union select t.number from family, turns t where t.session = t.number"
    " and t.parent in (select number from turns where session = family.id)) select id from family limit 1000"
)


def session_names(reader: JournalReader) -> dict[int, str]:
    """Return the client's names of sessions, by the numbers of the records that reached the backend."""
    return dict(reader.rows("select t.number, n.name from turns t join names n on n.number = t.name", []))


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a session that reached the backend.

    Attributes:
        number: number of its record.
        turn: 1 for a turn without a parent, else 1 more than the parent's.
        parent: number of the turn that it continues, or that started the sub-agent.
        name: the client's name for the session.
        pause: seconds since the end of the parent's response; None without a parent. For a keep-warm request, since the end of
            the request that it repeats, or since the keep-warm request before.
        reused_tokens: None if the backend did not report them.
        written_5m, written_1h: tokens written to the provider's cache for five minutes and for one hour.
        region, place: the first changed text: its region (see `Regions`) and its path in it (see `ChangedText`), such as
            `messages[0] system` or `tools[2] run_shell.description`, and the index of the text's character where the first
            changed word begins. If no tokens were lost to `changed`, or to the `minimum` of another model, `missing_mark`.
        diagnosis: the provider's own explanation (see `apis/cache_diagnoses.py`); None if none was requested.
        agrees: whether the diagnosis names the part that changed by our comparison; None if the provider compared nothing.
        keep_warm: what became of the keep-warm requests after the turn; None if none were planned, or before their end.
        lost: prompt tokens that were not reused, by cause (see `CAUSES`).
        cost: price of prompt and response, with the estimated length of a response without usage; None if the model has no
            price, or the length of the response is unknown.
        lost_cost: money that reuse of `lost_tokens` would have saved; None without a price, or if these are unknown.
        is_warming: it repeated a turn of the session to keep its prefix cached, or to compute it.
        service_tier: see `apis/service_tiers.py`; None for the standard tier.
        modalities: audio and image tokens, and the region, see `apis/modalities.py`; None without any.
        saved: money that reuse saved, less writes and storage; negative for a request that warmed the cache. None if unknown.
    """

    number: int
    session: int
    turn: int
    parent: int | None
    name: str | None
    request_id: str
    time: float
    seconds: float
    pause: float | None
    tenant: str
    model: str
    upstream: str | None
    prompt_tokens: int
    reused_tokens: int | None
    completion_tokens: int | None
    written_5m: int | None
    written_1h: int | None
    region: str | None
    place: int | None
    lost: dict[str, int]
    cost: float | None
    diagnosis: str | None = None
    agrees: bool | None = None
    keep_warm: str | None = None
    is_warming: bool = False
    service_tier: str | None = None
    saved: float | None = None
    lost_cost: float | None = None
    modalities: str | None = None
    estimated_completion_tokens: int | None = None
    has_price: bool = False
    missing_mark: str | None = None

    def price(self, prices: Mapping[str, PriceSettings]) -> PriceSettings | None:
        tier, modalities = self.service_tier, self.modalities
        return price_at(self.model, prices, self.time, self.prompt_tokens, tier, modalities)

    def with_cost(self, prices: Mapping[str, PriceSettings]) -> "Turn":
        price = self.price(prices)
        if price is None:
            return self
        written = (self.written_5m or 0, self.written_1h or 0)
        paid = input_price(price, self.prompt_tokens, self.reused_tokens or 0, *written)
        paid += storage_price(price, (self.reused_tokens or 0) * (self.pause or 0.0) / 3_600)
        tokens = self.estimated_completion_tokens if self.completion_tokens is None else self.completion_tokens
        output = None if tokens is None else tokens * price.output / MILLION
        cost = None if output is None else paid + output
        lost = self.lost_tokens
        above = price_lost_per_token(price, self.prompt_tokens, self.reused_tokens or 0, *written)
        return replace(
            self,
            has_price=True,
            cost=cost,
            saved=None if self.reused_tokens is None else self._saved(price, paid, cost),
            lost_cost=None if lost is None else lost * above,
        )

    def _saved(self, price: PriceSettings, paid: float, cost: float | None) -> float | None:
        if not self.is_warming:
            return self.prompt_tokens * price.input / MILLION - paid
        return None if cost is None else -cost

    @property
    def lost_tokens(self) -> int | None:
        """Lost tokens that a cache could have had, without `unreported` ones; None if it is unknown for all."""
        known = losses_with_cost(self.lost)
        return None if known is None else sum(known.values())

    @property
    def first_change(self) -> str | None:
        """The first changed text and its character, for people."""
        return change_place(self.region, self.place)

    def place_of(self, cause: str) -> tuple[str | None, int | None]:
        """Return `region` and `place` for a cause: of `unmarked`, the missing field, which other causes do not have."""
        if cause == "unmarked":
            return self.missing_mark, None
        return (None, None) if (self.region or "").partition(" ")[0] in MARKER_FIELDS else (self.region, self.place)

    def lost_cost_of(self, cause: str) -> float | None:
        """Return the part of `lost_cost` of one cause."""
        return cost_of_cause(self.lost_cost, self.lost, cause)


@dataclass(frozen=True, slots=True)
class Session:
    """A summary of a conversation's turns.

    Attributes:
        id: number of its first record.
        parent: number of the turn that started a sub-agent's session; None for other sessions.
        first, last: arrival of the first and of the last request, in seconds since the epoch.
        turns, prompt_tokens, completion_tokens, lost: without requests that warmed the cache.
        reused_tokens: None if the backend reported the reuse of no turn.
        longest_pause: seconds between two turns, without keep-warm requests.
        completion_tokens: None if they are unknown for all turns.
        cost: cost, also of requests that warmed the cache, without `unpriced_turns`, the turns of models without a price, and
            `incomplete_turns`, those of other models whose response has an unknown length; None if it is unknown for all.
        saved: money that the reuse of prompts saved, see `Turn`; None if it is unknown for all turns. Hits belong to no session.
        lost_cost: money that reuse of the lost tokens would have saved, see `Turn`; None if it is unknown for all turns.
    """

    id: int
    name: str | None
    tenant: str
    models: list[str]
    upstreams: list[str]
    parent: int | None
    first: float
    last: float
    turns: int
    prompt_tokens: int
    reused_tokens: int | None
    completion_tokens: int | None
    longest_pause: float
    cost: float | None
    lost: dict[str, int]
    unpriced_turns: int
    saved: float | None = None
    incomplete_turns: int = 0
    lost_cost: float | None = None


class SessionReader:
    def __init__(self, reader: JournalReader, prices: Mapping[str, PriceSettings]) -> None:
        self._reader = reader
        self._prices = prices

    def sessions(
        self,
        limit: int | None,
        since: float | None = None,
        min_turns: int = 1,
        offset: int = 0,
        *,
        until: float | None = None,
        tenant: str | None = None,
        team: str | None = None,
        model: str | None = None,
        tag: str | None = None,
    ) -> list[Session]:
        """Return the sessions with the latest requests, newest first, without sessions that only warmed a cache.

        With `since` and `until`, return only sessions with a request between these times (seconds since the epoch); with
        `tenant`, only those of this tenant or of the client with this name; with `team`, only those of this team; with
        `model` or `tag`, only those with a turn for this model, or with this tag. Skip the first `offset` sessions, and
        return at most `limit`; None returns all.
        """
        first = 0 if since is None else self._reader.first_number_since(since)
        end = self._reader.newest_number() + 1 if until is None else self._reader.first_number_since(until)
        sql = (
            "select t.session from turns t join records r on r.number = t.number"
            " where t.session in (select session from turns where number >= ? and number < ?)"
            f"{'' if tenant is None else _OF_TENANT}{'' if team is None else _OF_TEAM}{'' if model is None else _WITH_MODEL}"
            f"{'' if tag is None else _WITH_TAG}"
            " group by t.session"
            f" having count(*) filter (where r.layer <> coalesce((select number from names where name = 'warming'), 0)) >= ?"
            " order by max(t.number) desc"
        )
        page = "" if limit is None else f" limit {int(limit)} offset {int(offset)}"
        names = [name for name in (tenant, team, model, tag and f",{tag},") if name is not None]
        ids = [row[0] for row in self._reader.rows(sql + page, [first, end, *names, max(1, min_turns)])]
        turns: dict[int, list[Turn]] = {id: [] for id in ids}
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            for turn in self._turns(f"t.session in ({', '.join('?' * len(batch))})", batch):
                turns[turn.session].append(turn)
        return [summarize_session(session_turns) for session_turns in turns.values() if session_turns]

    def turns(self, session: str) -> list[Turn]:
        """Return the turns of a session and of its sub-agents, in order of arrival. Raises NotFound.

        `session` is the session's id, the client's name for it, or the id of one of its requests.
        """
        sql = "select session from turns where name = (select number from names where name = ?)"
        values: list[object] = [session]
        if session.isdecimal() and len(session) < 16:
            sql, values = f"{sql} or session = ? or number = ?", [session, int(session), int(session)]
        rows = self._reader.rows(f"{sql} limit 1", values)
        if not rows:
            with suppress(NotFound):
                rows = self._reader.rows(
                    "select session from turns where number = ?", [self._reader.find(session).number]
                )
        if not rows:
            raise NotFound(f"no session {session[:80]!r} in {self._reader.name}: kvproxy sessions lists them")
        return self._turns(f"t.session in ({_WITH_AGENTS})", rows[0])

    def selected_turns(self, selection: SumsFilter) -> list[Turn]:
        """Return the turns of the selected records, in order of arrival."""
        condition, values = selection.records_sql()
        return self._turns(condition, values)

    def turns_of_records(self, numbers: Sequence[int]) -> dict[int, Turn]:
        """Return the turns of records by their number; not each record has one."""
        turns: dict[int, Turn] = {}
        for start in range(0, len(numbers), _BATCH):
            batch = numbers[start : start + _BATCH]
            found = self._turns(f"t.number in ({', '.join('?' * len(batch))})", batch)
            turns |= {turn.number: turn for turn in found}
        return turns

    def all_turns(self) -> list[Turn]:
        return self._turns("?", [True])

    def pauses(self, now: float) -> list[tuple[float, str, float, bool]]:
        """Return the latest pauses in sessions with the Anthropic API: seconds, tenant, start time, and whether headless.

        A session without a request for an hour ends with an infinite pause, except a sub-agent's. Times are in seconds.
        """
        rows = self._reader.rows(_PAUSES, [inf, now - 3_600, _MAX_PAUSES])
        return [(seconds, tenant, start, bool(headless)) for seconds, tenant, start, headless in rows]

    def turn(self, record_number: int) -> Turn | None:
        return next(iter(self._turns("t.number = ?", [record_number])), None)

    def ledger(
        self, currency: str, selection: SumsFilter = SumsFilter(), *, reads_records: bool = True
    ) -> LedgerReport:
        """Return the ledger of the selected prompts.

        With `reads_records`, the lost tokens of recorded requests have the price of what these requests wrote.
        """
        condition, values = selection.sql()
        table = selection.table("prompt_tokens")
        sql = f"select model, day, result, sum(tokens) from {table} where {condition} group by 1, 2, 3"
        groups: dict[tuple[str, str], Counter[str]] = {}
        for model, day, result, tokens in self._reader.rows(sql, values):
            groups.setdefault((model, day), Counter())[result] = tokens
        unread = sum(counts[UNREAD_WRITES] for counts in groups.values())
        own_prices = self._recorded_losses(selection) if reads_records else {}
        report = ledger_of(
            (
                (price_on(model, self._prices, day), counts, own_prices.get((model, day), []))
                for (model, day), counts in groups.items()
            ),
            currency,
        )
        return replace(report, unread_writes=max(0, unread), diagnoses=self._diagnoses(selection))

    def _recorded_losses(self, selection: SumsFilter) -> dict[tuple[str, str], list[RecordedLoss]]:
        """Return the lost tokens of recorded requests with the price of each token, by model and UTC day."""
        condition, values = selection.records_sql()
        lost = " + ".join(f"coalesce(t.{cause}, 0)" for cause in CAUSES if cause != "new")
        sql = (
            "select r.model, r.time, r.prompt_tokens, coalesce(r.reused_tokens, 0), coalesce(t.written_5m, 0),"
            f" coalesce(t.written_1h, 0), r.service_tier, r.modalities, {', '.join(f't.{cause}' for cause in CAUSES)}"
            " from turns t"
            f" join requests r on r.number = t.number where {condition} and r.prompt_tokens > 0 and {lost} > 0"
            " and r.layer <> 'warming'"
        )
        losses: dict[tuple[str, str], list[RecordedLoss]] = {}
        for model, time, prompt, reused, short, long, tier, modalities, *causes in self._reader.rows(sql, values):
            if (price := price_at(model, self._prices, time, prompt, tier, modalities)) is not None:
                above = price_lost_per_token(price, prompt, reused, short, long)
                tokens = {cause: count for cause, count in zip(CAUSES, causes, strict=True) if count}
                day = utc_day(time)
                losses.setdefault((model, day), []).append(RecordedLoss(tokens, above))
        return losses

    def _diagnoses(self, selection: SumsFilter) -> list[DiagnosisRow]:
        condition, values = selection.records_sql()
        sql = (
            "select n.name, count(*), sum(case when t.agrees = 1 then 1 else 0 end),"
            " sum(case when t.agrees = 0 then 1 else 0 end) from turns t join names n on n.number = t.diagnosis"
            f" join requests r on r.number = t.number where {condition} group by n.name order by 2 desc, 1"
        )
        return [DiagnosisRow(*row) for row in self._reader.rows(sql, values)]

    def provider_writes(self, by: str, selection: SumsFilter) -> list[tuple[str, str, str, int, int, int]]:
        """Return sums of the tokens in a provider's cache, grouped by an SQL expression.

        An item has the group, the model, the UTC day, tokens written for five minutes and for one hour, and tokens times stored
        hours.
        """
        rows = self._provider_writes([by], selection.table("prompt_tokens"), selection)
        return [(name, model, day, short, long, hours) for name, model, day, short, long, hours in rows]

    def writes_by_team(self, selection: SumsFilter) -> list[tuple[str, str, str, str, int, int, int]]:
        """Return `provider_writes` by team and tenant. The name of the team is empty for requests without one."""
        of_teams = self._provider_writes(["team", "tenant"], selection.table("prompt_tokens", "team"), selection)
        every = self._provider_writes(["''", "tenant"], selection.table("prompt_tokens"), selection)
        rest = {(tenant, model, day): Counter(dict(enumerate(sums))) for _, tenant, model, day, *sums in every}
        for _, tenant, model, day, *sums in of_teams:
            # Sums of many tenants or models are folded, and the rows of both differ then.
            rest.get((tenant, model, day), Counter()).subtract(dict(enumerate(sums)))
        others = (("", *key, *(sums[place] for place in range(3))) for key, sums in rest.items() if any(sums.values()))
        return [*of_teams, *others]

    def _provider_writes(self, by: Sequence[str], table: str, selection: SumsFilter) -> list[tuple[Any, ...]]:
        written = ((name, WARMING + name) for name in ("written_5m", "written_1h"))
        results = (*written, (STORED_TOKEN_HOURS, STORED_TOKEN_HOURS))
        sums = ", ".join(f"sum(case when result in {names} then tokens else 0 end)" for names in results)
        condition, values = selection.sql()
        groups = ", ".join(map(str, range(1, len(by) + 3)))
        sql = f"select {', '.join(by)}, model, day, {sums} from {table} where {condition} and result in {sum(results, ())}"
        return self._reader.rows(f"{sql} group by {groups}", values)

    def _turns(self, condition: str, values: Sequence[object]) -> list[Turn]:
        rows = self._reader.rows(f"{_TURNS} where {condition} order by t.number", values) if values else []
        return [self._turn(row) for row in rows]

    def _turn(self, row: Sequence[Any]) -> Turn:
        *values, diagnosis, agrees, keep_warm, is_warming, tier, modalities, estimated, mark = row[: -len(CAUSES)]
        tokens = row[-len(CAUSES) :]
        lost = {cause: count for cause, count in zip(CAUSES, tokens, strict=True) if count}
        agreement = None if agrees is None else bool(agrees)
        turn = Turn(*(*values, lost, None, diagnosis, agreement, keep_warm, bool(is_warming), tier))
        # An earlier version recorded it as the first change.
        mark = mark or (turn.region if turn.region in MARKER_FIELDS else None)
        more = {"modalities": modalities, "estimated_completion_tokens": estimated, "missing_mark": mark}
        return replace(turn, **more).with_cost(self._prices)


def summarize_session(turns: Sequence[Turn]) -> Session:
    first, last = turns[0], turns[-1]
    of_client = [turn for turn in turns if not turn.is_warming]
    lost = Counter[str]()
    for turn in of_client:
        lost.update(turn.lost)
    costs = [turn.cost for turn in turns if turn.cost is not None]
    saved = [turn.saved for turn in turns if turn.saved is not None]
    lost_costs = [turn.lost_cost for turn in of_client if turn.lost_cost is not None]
    responses = [turn.completion_tokens for turn in of_client if turn.completion_tokens is not None]
    reported = [turn.reused_tokens for turn in of_client if turn.reused_tokens is not None]
    return Session(
        id=first.session,
        name=first.name,
        tenant=last.tenant,
        models=list(dict.fromkeys(turn.model for turn in turns)),
        upstreams=list(dict.fromkeys(turn.upstream for turn in turns if turn.upstream is not None)),
        parent=first.parent,
        first=first.time,
        last=last.time,
        turns=len(of_client),
        prompt_tokens=sum(turn.prompt_tokens for turn in of_client),
        reused_tokens=sum(reported) if reported else None,
        completion_tokens=sum(responses) if responses else None,
        longest_pause=max((turn.pause or 0.0 for turn in of_client), default=0.0),
        cost=sum(costs) if costs else None,
        lost={cause: lost[cause] for cause in CAUSES if lost[cause]},
        unpriced_turns=sum(not turn.has_price for turn in of_client),
        saved=sum(saved) if saved else None,
        incomplete_turns=sum(turn.has_price and turn.cost is None for turn in of_client),
        lost_cost=sum(lost_costs) if lost_costs else None,
    )
