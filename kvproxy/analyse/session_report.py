"""Finds the sessions of a log, their cost, and the causes of prompt tokens that were not reused."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import mean, median

from kvproxy.analyse.log_formats.log_format import LoggedRequest
from kvproxy.analyse.logged_turns import FIRST_TRACE_NUMBER, turns_of_requests
from kvproxy.analyse.simulate.trace_reader import TraceSession
from kvproxy.analyse.trace_turns import trace_turns
from kvproxy.analyse.turn_losses import TurnLoss, turn_losses
from kvproxy.journal.sessions.advice import Advice, advise, input_cost
from kvproxy.journal.sessions.ledger_report import LedgerReport, RecordedLoss, ledger_of
from kvproxy.journal.sessions.session_reader import (
    Session,
    Turn,
    summarize_session,
)
from kvproxy.providers.cache_policy import PauseTimes
from kvproxy.providers.cache_rules import cache_rule
from kvproxy.providers.pause_costs import InputPrice, LongWrite, SessionStep, provider_policy_input, session_price
from kvproxy.providers.prices import ModelPrices, RelativePrices
from kvproxy.settings.journal import (
    MILLION,
    JournalSettings,
    PriceSettings,
    price_lost_per_token,
    price_of,
)

_POLICY = 'breakpoints = "auto", keep_warm_tokens'
"""The policy of `providers/cache_policy.py`, by the settings that select it."""
_TOLERANCE = 0.02
"""Largest share of a prompt that the first request of its resumed session changes."""


@dataclass(frozen=True, slots=True)
class ChangedRegion:
    """The turns whose prompt changed first in a region, such as the system prompt, and the prompt tokens thus not reused."""

    region: str
    turns: int
    tokens: int


@dataclass(frozen=True, slots=True)
class KeepWarmCost:
    """Keep-warm requests, the prompt tokens that they read, and their cost."""

    requests: int
    tokens: int
    cost: float


@dataclass(frozen=True, slots=True)
class SessionReport:
    """The sessions of a log.

    Attributes:
        sessions: the most expensive first.
        changed: changed regions, the most lost tokens first.
        losses: turns that lost tokens to another cause than `new`, the most expensive first.
        advice: what to change first, with the money that it would have saved.
        minor_changes: number of changes that `advice` leaves out, because they save nearly nothing.
        repeated: share of prompt tokens with which an earlier request to the model began, without first turns: the median and
            the mean of the sessions; None without a second turn.
        cost, uncached: price of all input, and its price without a provider's cache.
        pause_costs: for each way to keep prefixes during pauses, the cost of the input if each turn stored its whole prompt,
            over the sessions with models whose prompts are marked by `cache_control`; five-minute writes are the first way.
        keep_warm: the keep-warm requests whose cost the last way has; None without costs of pauses.
        without_usage: number of ignored requests whose response does not report its usage.
        is_relative: whether all prices are multiples of the price of a million input tokens, because no model has a price.
        unpriced: number of requests of models without a price, which costs exclude; 0 if `is_relative`.
        files: number of transcripts and traces; 0 for a log of requests.
    """

    sessions: list[Session]
    ledger: LedgerReport
    changed: list[ChangedRegion]
    repeated: tuple[float, float] | None
    cost: float
    uncached: float
    pause_costs: dict[str, float]
    without_usage: int
    is_relative: bool
    unpriced: int = 0
    files: int = 0
    keep_warm: KeepWarmCost | None = None
    losses: list[TurnLoss] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)
    minor_changes: int = 0

    @property
    def reuse(self) -> float:
        """Share of all prompt tokens that were reused."""
        reused = sum(session.reused_tokens or 0 for session in self.sessions)
        return reused / max(1, self.ledger.prompt_tokens)


def report_sessions(
    requests: Sequence[LoggedRequest],
    traces: Sequence[TraceSession],
    settings: JournalSettings,
    progress: Callable[[float], None] = lambda share: None,
) -> SessionReport:
    """Assign requests to sessions, and find the cause of each prompt token that was not reused."""
    models = {request.body.get("model") for request in requests}
    models |= {request.get("model") for trace in traces for request in trace.requests}
    prices: Mapping[str, PriceSettings] = ModelPrices(settings)
    is_relative = not any(price_of(str(model), prices) for model in models)
    prices = RelativePrices() if is_relative else prices
    turns, without_usage = turns_of_requests(requests, prices, settings.prices, progress)
    for number, trace in enumerate(traces):
        progress(number / len(traces))
        turns += trace_turns(trace, FIRST_TRACE_NUMBER + len(turns), prices)
    by_session: defaultdict[int, list[Turn]] = defaultdict(list)
    tokens: defaultdict[str, Counter[str]] = defaultdict(Counter)
    losses: defaultdict[str, list[RecordedLoss]] = defaultdict(list)
    changed: defaultdict[str, list[int]] = defaultdict(list)
    for turn in turns:
        by_session[turn.session].append(turn)
        written = {"written_5m": turn.written_5m or 0, "written_1h": turn.written_1h or 0}
        tokens[turn.model].update({"reused": turn.reused_tokens or 0, **written, **turn.lost})
        if (price := turn.price(prices)) is not None:
            above = price_lost_per_token(price, turn.prompt_tokens, turn.reused_tokens or 0, *written.values())
            losses[turn.model].append(RecordedLoss(turn.lost, above))
        region, _ = turn.place_of("changed")
        if region is not None and "changed" in turn.lost:
            changed[region].append(turn.lost["changed"])
    regions = [ChangedRegion(region, len(lost), sum(lost)) for region, lost in changed.items()]
    advice = advise(turns, prices, settings.currency)
    pause_costs, keep_warm = _pause_costs(list(by_session.values()), prices)
    shares = [
        mean(map(_common_prefix_share, session_turns[1:]))
        for session_turns in by_session.values()
        if len(session_turns) > 1
    ]
    return SessionReport(
        sorted(map(summarize_session, by_session.values()), key=lambda summary: -(summary.cost or 0.0)),
        ledger_of(
            [(price_of(model, prices), counts, losses[model]) for model, counts in tokens.items()],
            "M input tokens" if is_relative else settings.currency,
        ),
        sorted(regions, key=lambda region: -region.tokens),
        (median(shares), mean(shares)) if shares else None,
        sum(input_cost(turn, prices) for turn in turns),
        sum(input_cost(turn, prices, cached=False) for turn in turns),
        pause_costs,
        without_usage,
        is_relative,
        sum(not turn.has_price for turn in turns),
        keep_warm=keep_warm,
        advice=advice.rows,
        minor_changes=advice.left_out,
        losses=sorted(turn_losses(turns), key=lambda loss: (-(loss.lost_cost or 0.0), -loss.tokens)),
    )


def _common_prefix_share(turn: Turn) -> float:
    return 1 - (turn.lost.get("new", 0) + turn.lost.get("changed", 0)) / turn.prompt_tokens


def _branches(sessions: Sequence[Sequence[Turn]]) -> list[list[Turn]]:
    """Return the branches of sessions: requests to one model, each of which continues the prompt of the previous one.

    A sub-agent is a branch, and a resumed session continues the branch of the earlier session.
    """
    turns = sorted((turn for session in sessions for turn in session), key=lambda turn: (turn.time, turn.number))
    # Of several requests that continue a prompt, such as one of a sub-agent, the most similar one is in its branch.
    successors: dict[int | None, Turn] = {}
    for turn in turns:
        best = successors.get(turn.parent)
        if _shared_tokens(turn) > (0 if best is None else _shared_tokens(best)):
            successors[turn.parent] = turn
    branches: list[list[Turn]] = []
    for turn in turns:
        is_successor = turn.parent is None or successors.get(turn.parent) is turn
        branch = next((branch for branch in reversed(branches) if is_successor and _continues(turn, branch[-1])), None)
        if branch is None:
            branches.append([turn])
        else:
            branch.append(turn)
    return branches


def _continues(turn: Turn, last: Turn) -> bool:
    """Whether a turn continues the last one of a branch; a turn without a parent may resume an earlier session."""
    if (last.tenant, last.model) != (turn.tenant, turn.model):
        return False
    if turn.parent is not None:
        return turn.parent == last.number
    return abs(last.prompt_tokens - _shared_tokens(turn)) <= _TOLERANCE * last.prompt_tokens


def _shared_tokens(turn: Turn) -> int:
    """Return the number of tokens that an earlier prompt has, too."""
    return round(turn.prompt_tokens * _common_prefix_share(turn))


def _pause_costs(
    sessions: Sequence[Sequence[Turn]], prices: Mapping[str, PriceSettings]
) -> tuple[dict[str, float], KeepWarmCost | None]:
    writes: dict[str, LongWrite] = {
        'breakpoints = "5m"': lambda new, unprotected: False,
        'breakpoints = "1h"': lambda new, unprotected: True,
    }
    costs = dict.fromkeys(writes, 0.0)
    policy = InputPrice()
    survival = PauseTimes().survival()
    for turns in _branches(sessions):
        rule, price = cache_rule(turns[0].model), turns[0].price(prices)
        # The lifetimes and the keep-warm requests are Anthropic's; other providers' rules forbid them, or are unknown.
        if price is None or rule is None or rule.mark_field != "cache_control":
            continue
        pauses = [None, *(max(0.0, turn.time - last.time - last.seconds) for last, turn in pairwise(turns))]
        steps = [
            SessionStep(
                turn.prompt_tokens,
                # The log may begin within a session, and the first turn of a sub-agent reads the tools of other sessions.
                (turn.reused_tokens or 0) if pause is None else _shared_tokens(turn),
                pause,
                turn.price(prices),
            )
            for turn, pause in zip(turns, pauses, strict=True)
        ]
        steps.append(SessionStep(0, turns[-1].prompt_tokens, inf))
        for name, long_write in writes.items():
            costs[name] += session_price(steps, lambda tokens, kept: 0, long_write, price)
        policy += provider_policy_input(steps, survival, price)
    if not any(costs.values()):
        return {}, None
    costs[_POLICY] = policy.total
    return (
        {name: cost / MILLION for name, cost in costs.items()},
        KeepWarmCost(policy.requests, policy.tokens, policy.keep_warm / MILLION),
    )
