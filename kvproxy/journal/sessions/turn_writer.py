"""Writes a turn for each request to the backend: its session, its parent, and its lost prompt tokens."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from kvproxy.apis.api_request import ApiRequest, session_name
from kvproxy.apis.cache_diagnoses import agrees_with
from kvproxy.apis.message_parts import with_plain_texts, without_moved_texts
from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.apis.sub_agents import called_digests, prompt_digests
from kvproxy.blocks.divergence import reusable_tokens
from kvproxy.blocks.reuse_distance import LiveHitCurve
from kvproxy.exchange import Exchange
from kvproxy.journal.cache_history import CacheHistory
from kvproxy.journal.daily_sums import DailySumsWithTeams
from kvproxy.journal.databases.database import JournalDatabase
from kvproxy.journal.exchange_record import KEEP_WARM_TAG
from kvproxy.journal.record import Record
from kvproxy.journal.request_regions import Regions, digest_of_region
from kvproxy.journal.schema import StringIds
from kvproxy.journal.sessions.expected_reuse import expected_reuse
from kvproxy.journal.sessions.ledger import (
    BLOCK,
    CAUSES,
    LOADED,
    REUSABLE,
    STORED_TOKEN_HOURS,
    UNREAD_WRITES,
    WARMING,
    lost_tokens,
)
from kvproxy.journal.sessions.marked_regions import marked_regions, missing_mark, nearer_mark, requested_lifetime
from kvproxy.journal.sessions.prompt_change import PromptChange, PromptChanges
from kvproxy.journal.sessions.related_turns import RelatedTurns, related_turns
from kvproxy.journal.sessions.session_matching import (
    CommonPrefix,
    KnownTurn,
    PromptChain,
    RegionContents,
    SessionIndex,
)
from kvproxy.layers import CACHES
from kvproxy.providers.cache_rules import cache_rule
from kvproxy.providers.prices import CacheLimits, cache_limits, shortest_cached_prefix
from kvproxy.settings.journal import PriceSettings

_HOUR = 3_600.0
_MAX_RESTORED = 1_000
_MAX_ROOTS = 4_096
_MAX_CURVES = 64
_MAX_MODELS = 1_024
_MAX_REQUEST_IDS = 4_096
_COLUMNS = (
    *("number", "session", "turn", "parent", "name", "pause", "written_5m", "written_1h", "region", "place"),
    *("diagnosis", "agrees", "question", "missing_mark", *CAUSES),
)
# The first twelve columns are the first fields of KnownTurn.
_LATEST = (
    "select r.number, t.session, t.turn, t.parent, r.prompt, r.time, r.time + coalesce(r.total_us, 0) / 1e6,"
    " r.time + coalesce(r.first_us, r.total_us, 0) / 1e6, u.name,"
    " r.prompt_tokens, coalesce(r.completion_tokens, 0), coalesce(r.reused_tokens, 0) + t.written_5m"
    " + coalesce(t.written_1h, 0), t.written_1h, tenant.name, model.name, n.name, r.reused_tokens,"
    " t.question, r.response_id, tags.name, p.regions, p.shape, s.sizes"
    " from turns t join records r on r.number = t.number join names tenant on tenant.number = r.tenant"
    " join names model on model.number = r.model left join names u on u.number = r.upstream left join names n"
    " on n.number = t.name left join names tags on tags.number = r.tags"
    " join prompts p on p.number = r.prompt join prompt_sizes s on s.prompt = r.prompt"
    " where r.number > ? and r.prompt_tokens is not null and p.regions is not null order by r.number desc limit ?"
)


class TurnWriter:
    """Assigns requests to sessions in the caller's transaction."""

    def __init__(
        self,
        database: JournalDatabase,
        strings: StringIds,
        history: CacheHistory,
        prices: Mapping[str, PriceSettings],
    ) -> None:
        self.contents = RegionContents()
        self._database = database
        self._strings = strings
        self._changes = PromptChanges(history, self.contents)
        self._prices = prices
        self._index = SessionIndex()
        self._roots: OrderedDict[bytes, int] = OrderedDict()  # By the digest of a text of a first message.
        self.reuse_curves: dict[str, LiveHitCurve] = {}
        """Reuse by pool size for the prompts of each upstream; a size is in bytes of prompts."""
        self._tokens = DailySumsWithTeams(database, "prompt_tokens", ("tenant", "model", "result"), ("tokens",))
        self._block_sizes: dict[str, int] = {}  # Of engines, by model; `BLOCK` if the engine does not report it.
        self._limits: dict[str, CacheLimits] = {}
        self._rows: list[Sequence[object]] = []  # Turns of the batch that are not inserted yet.
        self._numbers: OrderedDict[str, int] = OrderedDict()  # Of the last turns, by the id of their request.
        self._newest: int | None = None
        self._is_current = False

    def begin_batch(self) -> None:
        """Make the next `add` read the turns that other proxies have written."""
        self._is_current = False

    def end_batch(self) -> None:
        """Write the turns since `begin_batch`, and the sums of their tokens."""
        self._insert_rows()
        self._tokens.write()

    def fold_old_days(self, now: float) -> None:
        self._tokens.fold_old_days(now)

    def on_rollback(self) -> None:
        self._newest, self._is_current = None, False
        self._rows.clear()
        self._tokens.clear()

    def add(self, exchange: Exchange, record: Record, regions: Regions) -> None:
        """Insert the turn of a request if it reached the backend. `record` must have its number and its prompt."""
        if not _is_turn(exchange, record) or record.prompt is None or exchange.request is None:
            return
        self._read_turns()
        self._newest = record.number
        name = session_name(exchange.request)
        chain = self._index.chain_of(regions, record.tenant, self._question_before_edits(regions, exchange.request))
        self._add_to_curve(
            chain, record.upstream, record.prompt_tokens or 0, record.reused_tokens, exchange.facts.block_size
        )
        self._keep_block_size(exchange, record)
        limits = self._limits_of(record.model)
        answered = record.time + (record.first_ms or record.total_ms or 0.0) / 1000
        related = related_turns(self._index, self._changes, chain, record, name, answered)
        marked = marked_regions(exchange.request, chain)
        use = _with_known_writes(exchange.facts.prefix or PrefixReuse(0, 0), record.model, has_marks=marked is not None)
        missing = None if exchange.facts.is_engine else missing_mark(exchange.request, marked, use)
        expected, answer_region = expected_reuse(
            exchange, record, chain, related, limits, self.contents, unmarked=missing is not None
        )
        lacks_mark = missing is not None
        prefix = None if exchange.facts.is_engine or lacks_mark else related.prefix
        if prefix is not None and expected.may_be_out_of_reach(use.cached_tokens):
            missing = nearer_mark(exchange.request, chain, prefix)
            expected = replace(expected, unmarked=missing is not None)
        lost = lost_tokens(record.prompt_tokens or 0, record.reused_tokens, expected)
        turn = KnownTurn(
            number=record.number,
            session=related.session or record.number,
            turn=1 if related.parent is None else related.parent.turn + 1,
            parent=None if related.parent is None else related.parent.number,
            prompt=record.prompt,
            time=record.time,
            ended=record.time + (record.total_ms or 0.0) / 1000,
            answered=answered,
            upstream=record.upstream,
            prompt_tokens=record.prompt_tokens or 0,
            completion_tokens=record.completion_tokens or 0,
            stored=use.stored_tokens,
            ttl=_prefix_ttl(use, related.prefix, requested_lifetime(exchange.request) or limits.lifetime),
            used=record.time,
            answer=exchange.facts.answer_digests,
            cached=use.cached_tokens,
            unread=(use.written_5m or 0) + (use.written_1h or 0),
            # Without the change, the end would have had a breakpoint.
            marked_regions=(*(marked or ()), len(chain.names)) if exchange.request.omits_breakpoints else marked,
            lacks_mark=lacks_mark,
        )
        pause = _pause(record, related)
        diagnosis, change = exchange.facts.diagnosis, related.change
        agrees = _agrees(diagnosis, change)
        if answer_region is not None:
            change = replace(change, region=answer_region, path="", place=None)
        mark = missing if "unmarked" in lost else None
        where = _first_change(change, mark, lost)
        facts = (name, pause, use.written_5m, use.written_1h, *where, diagnosis, agrees, chain.question, mark)
        self._insert_turn(turn, record.request_id, facts, lost)
        self._add_sums(exchange, record, turn, related.prefix, use, pause, lost)
        self._add_to_index(turn, chain, record, name, related.prefix)

    def _keep_block_size(self, exchange: Exchange, record: Record) -> None:
        if exchange.facts.is_engine:
            if len(self._block_sizes) >= _MAX_MODELS:
                self._block_sizes.clear()
            size = exchange.facts.block_size or self._block_sizes.get(record.model, BLOCK)
            self._block_sizes[record.model] = size

    def _add_sums(
        self,
        exchange: Exchange,
        record: Record,
        turn: KnownTurn,
        prefix: CommonPrefix | None,
        use: PrefixReuse,
        pause: float | None,
        lost: Mapping[str, int],
    ) -> None:
        stored = round((record.reused_tokens or 0) * (pause or 0.0) / _HOUR)
        read = 0 if prefix is None or _is_keep_warm(record.tags) else prefix.turn.count_read(use.cached_tokens)
        upstream = exchange.facts.served_by
        media = {} if upstream is None else upstream.loaded_tokens(record.reused_tokens)
        start = WARMING if record.layer == "warming" else ""
        results = {"reused": record.reused_tokens, "written_5m": use.written_5m, "written_1h": use.written_1h, **lost}
        results |= {LOADED + medium: tokens for medium, tokens in media.items()}
        sums = {start + result: tokens for result, tokens in results.items()}
        self._add_tokens(record, {**sums, STORED_TOKEN_HOURS: stored, UNREAD_WRITES: turn.unread - read})

    def _add_to_index(
        self, turn: KnownTurn, chain: PromptChain, record: Record, name: str | None, prefix: CommonPrefix | None
    ) -> None:
        if prefix is not None and _is_keep_warm(record.tags):
            # The next request continues the turn that it repeats.
            prefix.turn.renew(turn)
            return
        if prefix is not None:
            turn.keep_stored_prefix(prefix)
        self._link_sub_agents(chain, turn, prefix)
        self._index.add(turn, chain, record.tenant, name, record.response_id)

    def _question_before_edits(self, regions: Regions, request: ApiRequest) -> bytes | None:
        if not request.moved_texts or regions.question is None:
            return None
        content = self.contents.content(regions.digests[regions.question])
        if content is None:
            return None
        message = without_moved_texts(content, request.moved_texts)
        # The next request may have the same text as a text instead of a block.
        return digest_of_region(with_plain_texts(message) if request.api.name == "messages" else message)

    def add_hit(self, record: Record, regions: Regions | None) -> None:
        """Count the tokens of a hit that the backend would have reused.

        A provider reuses no token without a breakpoint, and at most those stored for the last request with the prefix.
        `regions` is None if an equal prompt was sent before.
        """
        if record.layer not in CACHES:
            return
        common = prompt_tokens = record.prompt_tokens or 0
        earlier = self._index.latest_turn(record.prompt)
        if regions is not None:
            self._read_turns()
            chain = self._index.chain_of(regions, record.tenant)
            known = self._index.find_longest_prefix(chain, prompt_tokens)
            common = known.tokens if known is not None and chain.shape.has_text(known.regions) else 0
            earlier = None if known is None else known.turn
        block_size = self._block_sizes.get(record.model)
        if block_size is None and earlier is not None:
            common = 0 if earlier.lacks_mark else min(common, earlier.stored or common)
        if block_size is None and common < shortest_cached_prefix(record.model, self._prices):
            return
        rule = cache_rule(record.model) if block_size is None else None
        if rule is None:
            reusable = reusable_tokens(common, prompt_tokens, block_size or BLOCK)
        else:
            reusable = min(common, prompt_tokens) // rule.step_tokens * rule.step_tokens
        self._add_tokens(record, {REUSABLE + record.layer: reusable})

    def _limits_of(self, model: str) -> CacheLimits:
        limits = self._limits.get(model)
        if limits is None:
            if len(self._limits) >= _MAX_MODELS:
                self._limits.clear()
            limits = self._limits[model] = cache_limits(model, self._prices)
        return limits

    def use_prices(self, prices: Mapping[str, PriceSettings]) -> None:
        self._prices, self._limits = prices, {}

    def _add_to_curve(
        self, chain: PromptChain, upstream: str | None, tokens: int, reused: int | None, block_tokens: int = 0
    ) -> None:
        name = upstream or ""
        if name not in self.reuse_curves and len(self.reuse_curves) < _MAX_CURVES:
            self.reuse_curves[name] = LiveHitCurve()
        if (curve := self.reuse_curves.get(name)) is not None:
            curve.block_tokens = block_tokens or curve.block_tokens
            curve.add(chain.prefixes, list(accumulate(chain.sizes)), tokens, reused)

    def set_keep_warm(self, request_id: str, text: str) -> None:
        """Record what became of the keep-warm requests after a turn."""
        if (number := self._numbers.get(request_id)) is not None:
            self._insert_rows()
            sql = "update turns set keep_warm = ? where number = ?"
            self._database.execute(sql, [self._strings.id_of(text), number])

    def _insert_rows(self) -> None:
        rows, self._rows = self._rows, []
        self._database.insert("turns", _COLUMNS, rows)

    def _insert_turn(self, turn: KnownTurn, request_id: str, values: Sequence[object], lost: Mapping[str, int]) -> None:
        self._numbers[request_id] = turn.number
        if len(self._numbers) > _MAX_REQUEST_IDS:
            self._numbers.popitem(last=False)
        stored = [self._strings.id_of(value) if isinstance(value, str) else value for value in values]
        self._rows.append([turn.number, turn.session, turn.turn, turn.parent, *stored, *map(lost.get, CAUSES)])

    def _add_tokens(self, record: Record, tokens: Mapping[str, int | None]) -> None:
        for result, count in tokens.items():
            # A row of zero reused tokens means that the backend reports reuse.
            if count or (result == "reused" and count is not None):
                self._tokens.add(record.time, (record.tenant, record.model, result), (count,), record.team)

    def _link_sub_agents(self, chain: PromptChain, turn: KnownTurn, common_prefix: CommonPrefix | None) -> None:
        if turn.parent is None:
            first = self.contents.content(chain.digests[chain.first]) if chain.first < len(chain.names) else None
            for prompt in prompt_digests(first):
                self._roots[prompt] = turn.number
                if len(self._roots) > _MAX_ROOTS:
                    self._roots.popitem(last=False)
            return
        start = 0 if common_prefix is None else common_prefix.regions
        for index in chain.shape.assistants:
            for prompt in called_digests(self.contents.content(chain.digests[index])) if index >= start else ():
                root = self._roots.get(prompt)
                # A sub-agent may pass its own prompt to a tool, such as a search.
                if root is not None and root != turn.session:
                    del self._roots[prompt]
                    self._insert_rows()
                    sql = "update turns set parent = ? where number = ? and parent is null"
                    self._database.execute(sql, [turn.parent, root])

    def _read_turns(self) -> None:
        if self._is_current:
            return
        self._is_current = True
        is_start = self._newest is None
        if is_start:
            self._index, self._newest = SessionIndex(), 0
        for row in reversed(self._database.rows(_LATEST, [self._newest, _MAX_RESTORED])):
            known, (written_1h, tenant, model, name, reused, question, *more) = KnownTurn(*row[:12]), row[12:]
            response_id, tags, *stored = more
            known.ttl, known.used = _HOUR if written_1h else cache_limits(model, self._prices).lifetime, known.time
            known.cached = reused or 0
            known.unread = max(0, (known.stored or 0) - (reused or 0))
            chain = self._index.chain_of(self._strings.regions(*stored), tenant, question)
            if (prefix := self._index.find_longest_prefix(chain, known.prompt_tokens)) is not None:
                if _is_keep_warm(tags):
                    prefix.turn.renew(known)
                    continue
                prefix.turn.count_read(reused or 0)
                known.keep_stored_prefix(prefix)
            self._index.add(known, chain, tenant, name, response_id)
            if not is_start:
                self._add_to_curve(chain, known.upstream, known.prompt_tokens, reused)

    def prune(self, oldest_record: int) -> None:
        self._database.execute("delete from turns where number < ?", [oldest_record])


def _is_turn(exchange: Exchange, record: Record) -> bool:
    reached = exchange.hit is None and not exchange.was_collapsed and record.layer != "revalidated"
    return reached and record.status == 200 and bool(record.prompt_tokens)


def _is_keep_warm(tags: str | None) -> bool:
    return KEEP_WARM_TAG in (tags or "").split(",")


def _pause(record: Record, related: RelatedTurns) -> float | None:
    """Return the seconds since the turn before, or, for a keep-warm request, since the last use of its prefix."""
    if _is_keep_warm(record.tags) and related.prefix is not None:
        return record.time - max(related.prefix.turn.ended, related.prefix.turn.used)
    return None if related.parent is None else record.time - related.parent.ended


def _agrees(diagnosis: str | None, change: PromptChange) -> bool | None:
    if diagnosis is None or not change.is_known:
        return None
    agrees = agrees_with(diagnosis, change.region)
    return agrees_with(diagnosis, change.setting) if agrees is False and change.setting is not None else agrees


def _first_change(change: PromptChange, mark: str | None, lost: Mapping[str, int]) -> tuple[str | None, int | None]:
    """Return the path and the place of the change that lost tokens; without one, the missing field `mark`."""
    is_switch_below_minimum = "minimum" in lost and change.region == "model"
    if change.region is not None and ("changed" in lost or is_switch_below_minimum):
        return change.region + change.path, change.place
    return mark, None


def _with_known_writes(use: PrefixReuse, model: str, *, has_marks: bool) -> PrefixReuse:
    """Return the use without writes of 0 if the provider stores prefixes without breakpoints: gateways add them to each usage."""
    rule = cache_rule(model)
    is_known = has_marks or use.written_5m or use.written_1h or (rule is not None and rule.mark_field is not None)
    return use if is_known else use._replace(written_5m=None, written_1h=None)


def _prefix_ttl(use: PrefixReuse, common_prefix: CommonPrefix | None, lifetime: float) -> float:
    if use.written_1h:
        return _HOUR
    return (
        common_prefix.turn.ttl if common_prefix is not None and use.cached_tokens and not use.written_5m else lifetime
    )
