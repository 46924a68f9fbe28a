"""Ranks changes that avoid lost reuse by the money that they would have saved, less their own cost."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from kvproxy.apis.key_fields import MARKER_FIELDS
from kvproxy.journal.sessions.ledger import WITHOUT_COST
from kvproxy.journal.sessions.remedy_costs import RemedyCosts, is_first_turn
from kvproxy.journal.sessions.session_reader import Turn
from kvproxy.providers.cache_rules import cache_rule
from kvproxy.settings.journal import MILLION, PriceSettings, input_price

REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "changed": "keep the beginning of prompts: kvproxy sessions show names the first change",
        "evicted": "enlarge the pool of the engine",
        "concurrent": "start one of these requests first, and the others when its response has begun",
        "expired": 'keep prefixes longer: the rule fields breakpoints = "auto" and keep_warm_tokens',
        "moved": "send the requests of a session to one upstream",
        "retokenised": "none on this engine: see docs/agent-caching.md",
        "minimum": "begin with a longer stable text, or use a model with a smaller minimum",
        "unmarked": 'mark prefixes: the rule field breakpoints = "auto"',
    }
)
"""What avoids each cause of lost tokens, except those that no cache avoids."""
_REMEDIES_BETWEEN_SESSIONS = {
    "expired": 'keep the beginning that sessions share for an hour: the rule field breakpoints = "1h"',
    "moved": "send sessions with the same beginning to one upstream: see docs/routing.md",
}
"""Remedies for first turns: keep-warm requests keep the prefix of one session."""
Reuse = Literal["between sessions", "within sessions"]
_DROPPED = {"openai": "send one prompt_cache_key with all requests of a prefix, so that they reach one machine"}
_DROPPED_AS_USUAL = "none: the provider dropped the prefix within its lifetime"
_KEEP_TEXT = "keep the text, or move it to the end: kvproxy lint writes an edit for a date, an id, or a counter"
_REMEDIES_OF_CHANGES = tuple(
    (re.compile(place), remedy)
    for place, remedy in (
        (r"model$", "switch the model between sessions: another one has no prefix of this session"),
        (r".* \(text of an edit\)$", "remove the text instead of moving it: the action strip of the edit"),
        (r"tools \(", "keep the order of the tools: kvproxy lint writes the edit sort-tools"),
        (
            r"tools\[\d+\][^.]* \((added|removed)\)$",
            "send the same tools from the first turn on, also in sub-agents: start MCP servers before it, or use tool search",
        ),
        (r"tools$", "send the same tools in each turn: if a request has none, kvproxy lint writes the edit add-tools"),
        (r"tools", "keep the definitions of the tools: a date, an id, or a counter belongs into the last message"),
        (r"(system|instructions|prompt|input$|(messages|input)\[\d+\] (system|developer))", _KEEP_TEXT),
        (
            r"(messages|input)\[(\d+|n)\].*\((added|removed)\)$",
            "send each message with the same parts in all turns, also images: a new or dropped part changes all after it",
        ),
        (r"(messages|input)\[(\d+|n)\] assistant", "return answers as they were: the rule field repair_history"),
        (r"(messages|input)\[0\]", _KEEP_TEXT),
        (r"(messages|input)\[", "append to the history: an edited or dropped message changes everything after it"),
        (r"", "use one value in all requests: the prefixes of other values are cached apart"),
    )
)
"""What avoids a change, by the pattern of its place: the first match counts. The last one is for fields such as `thinking`."""
LEAST_SAVED = 0.001
"""Of the cost of all input: a smaller loss is not worth a change."""
_FIVE_MINUTES = 300.0
_LATER_MESSAGE = re.compile(r"^(messages|input)\[[1-9]\d*\]")


@dataclass(slots=True)
class Advice:
    """A cause of lost reuse at one place of the prompts of a model.

    Attributes:
        reuse: "between sessions" for the first turns of sessions and sub-agents, which can reuse the beginning of others, and
            "within sessions" for later turns, which can reuse their own history.
        place: the first changed text of `changed`, or the missing field of `unmarked`; None for other causes, and if it is
            unknown. Messages after the first one have the index `[n]`.
        turns, tokens: number of turns, and of their prompt tokens lost to the cause.
        lost_cost: money that their reuse would have saved; None without a price.
        saved: `lost_cost` without the cost of the remedy: of more writes at breakpoints, of writes for one hour, and of
            keep-warm requests.
        remedy: what avoids the loss.
    """

    reuse: Reuse
    cause: str
    place: str | None
    model: str
    remedy: str
    turns: int = 0
    tokens: int = 0
    lost_cost: float | None = None
    saved: float | None = None


@dataclass(slots=True)
class AdviceReport:
    """Advice, the one that saves most first.

    Attributes:
        one_hour_cost: what writing tokens for one hour cost beyond writing them for five minutes.
        one_hour_saved: what reuse after longer pauses saved, in sessions with such writes. Both are None without them.
        left_out: number of rows below `LEAST_SAVED`, which are not in `rows`.
    """

    currency: str
    rows: list[Advice] = field(default_factory=list)
    one_hour_cost: float | None = None
    one_hour_saved: float | None = None
    left_out: int = 0


def advise(turns: Iterable[Turn], prices: Mapping[str, PriceSettings], currency: str) -> AdviceReport:
    """Sum the losses of turns, which are in order of time."""
    report, rows = AdviceReport(currency), dict[tuple[str, str, str | None, str, str], Advice]()
    long_sessions, ends, cost, remedies = set[int](), dict[int, str](), 0.0, RemedyCosts(prices)
    for turn in turns:
        if turn.keep_warm is not None:
            ends[turn.number] = turn.keep_warm.partition(": ")[2]
        _add_one_hour_writes(report, turn, long_sessions, prices)
        if turn.is_warming:
            continue
        cost += input_cost(turn, prices)
        remedies.add(turn)
        reuse: Reuse = "between sessions" if is_first_turn(turn) else "within sessions"
        for cause, tokens in turn.lost.items():
            if cause not in WITHOUT_COST:
                place = _place(turn, cause) if cause in ("changed", "unmarked") else None
                remedy = _remedy(reuse, cause, place, turn.model)
                if cause == "expired" and (end := ends.get(turn.parent or 0)):
                    remedy = f"see why the keep-warm requests ended: {end}"
                row = Advice(reuse, cause, place, turn.model, remedy)
                row = rows.setdefault((reuse, cause, place, turn.model, remedy), row)
                _add(row, tokens, turn.lost_cost_of(cause))
    _subtract_costs(list(rows.values()), remedies)
    worth = [row for row in rows.values() if row.saved is None or row.saved >= LEAST_SAVED * cost]
    report.rows = sorted(worth, key=lambda row: (-(row.saved or 0.0), -row.tokens))
    report.left_out = len(rows) - len(worth)
    return report


def _subtract_costs(rows: Sequence[Advice], remedies: RemedyCosts) -> None:
    lost: defaultdict[tuple[str, str, Reuse | None], float] = defaultdict(float)
    for row in rows:
        lost[_remedied(row)] += row.lost_cost or 0.0
    for row in rows:
        whole, row.saved = lost[_remedied(row)], row.lost_cost
        if row.lost_cost is None or "breakpoints = " not in row.remedy:
            continue
        if row.cause == "unmarked":
            saved = whole - remedies.of_marks[row.model]
        elif row.reuse == "between sessions":
            saved = whole - remedies.lost_for_hours[row.model] - remedies.of_one_hour[row.model]
        else:
            saved = min(whole, remedies.saved_by_policy(row.model))
        row.saved = saved * row.lost_cost / whole if whole else 0.0


def _remedied(row: Advice) -> tuple[str, str, Reuse | None]:
    """Return what rows have in common whose loss one remedy avoids: breakpoints within sessions are those between sessions."""
    return row.cause, row.model, None if row.cause == "unmarked" else row.reuse


def input_cost(turn: Turn, prices: Mapping[str, PriceSettings], *, cached: bool = True) -> float:
    """Return the price of a prompt, also without the provider's cache; 0 if it is unknown."""
    price = turn.price(prices)
    if price is None:
        return 0.0
    use = (turn.reused_tokens or 0, turn.written_5m or 0, turn.written_1h or 0) if cached else (0, 0, 0)
    return input_price(price, turn.prompt_tokens, *use)


def _remedy(reuse: Reuse, cause: str, place: str | None, model: str) -> str:
    if cause == "changed" and place is not None:
        return next(remedy for pattern, remedy in _REMEDIES_OF_CHANGES if pattern.match(place))
    if cause == "unmarked" and place not in (None, *MARKER_FIELDS):
        return 'mark the end of the previous request, too: the rule field breakpoints = "auto"'
    rule = cache_rule(model)
    if cause == "expired" and rule is not None and rule.mark_field != "cache_control":
        # Rules mark and repeat prefixes for one hour with Anthropic's API only.
        if rule.lifetime_field is not None:
            return f'ask for a longer lifetime: {rule.lifetime_field} = "{list(rule.lifetimes)[-1]}"'
        pauses = "" if reuse == "between sessions" else "shorten the pauses, or "
        return f"{pauses}ask the provider for a longer lifetime"
    if cause == "evicted" and rule is not None:
        return _DROPPED.get(rule.provider, _DROPPED_AS_USUAL)
    return (_REMEDIES_BETWEEN_SESSIONS.get(cause) if reuse == "between sessions" else None) or REMEDIES[cause]


def _add(row: Advice, tokens: int, lost_cost: float | None) -> None:
    row.turns += 1
    row.tokens += tokens
    if lost_cost is not None:
        row.lost_cost = (row.lost_cost or 0.0) + lost_cost


def _place(turn: Turn, cause: str) -> str | None:
    region, _ = turn.place_of(cause)
    return None if region is None else _LATER_MESSAGE.sub(r"\1[n]", region)


def _add_one_hour_writes(
    report: AdviceReport, turn: Turn, long_sessions: set[int], prices: Mapping[str, PriceSettings]
) -> None:
    price = turn.price(prices)
    if price is None:
        return
    if turn.session in long_sessions and turn.reused_tokens and (turn.pause or 0.0) > _FIVE_MINUTES:
        saved = turn.reused_tokens * (price.price_of_5m_write - price.price_of_reuse) / MILLION
        report.one_hour_saved = (report.one_hour_saved or 0.0) + saved
    if turn.written_1h:
        long_sessions.add(turn.session)
        more = turn.written_1h * (price.price_of_1h_write - price.price_of_5m_write) / MILLION
        report.one_hour_cost = (report.one_hour_cost or 0.0) + more
        report.one_hour_saved = report.one_hour_saved or 0.0
