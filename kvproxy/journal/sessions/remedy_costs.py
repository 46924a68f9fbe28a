"""Estimates what the remedies of lost reuse cost, such as keep-warm requests and the higher price of longer lifetimes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from math import inf

from kvproxy.journal.sessions.session_reader import Turn
from kvproxy.providers.cache_policy import HOUR, PauseTimes
from kvproxy.providers.cache_rules import cache_rule
from kvproxy.providers.pause_costs import Session, SessionStep, provider_policy_price, session_price
from kvproxy.settings.journal import MILLION, PriceSettings


class RemedyCosts:
    """Costs by model, over the turns of clients in order of time.

    Attributes:
        of_marks: price of writing the tokens that were neither read nor written, beyond their price as uncached input.
        of_one_hour: price of writing for one hour all tokens that were written for five minutes and not lost to a pause.
        lost_for_hours: price of the tokens that first turns lost because no request to the model arrived for an hour.
    """

    def __init__(self, prices: Mapping[str, PriceSettings]) -> None:
        self.of_marks: defaultdict[str, float] = defaultdict(float)
        self.of_one_hour: defaultdict[str, float] = defaultdict(float)
        self.lost_for_hours: defaultdict[str, float] = defaultdict(float)
        self._prices = prices
        self._arrivals: dict[tuple[str, str], float] = {}  # Of the last turn, by tenant and model.
        self._sessions: defaultdict[str, list[tuple[Session, list[bool]]]] = defaultdict(list)
        self._open: dict[int, tuple[Session, list[bool]]] = {}  # By the number of the last turn.

    def add(self, turn: Turn) -> None:
        price = turn.price(self._prices)
        if price is None:
            return
        reused, short, long = turn.reused_tokens or 0, turn.written_5m or 0, turn.written_1h or 0
        plain = turn.prompt_tokens - reused - short - long - turn.lost.get("unmarked", 0)
        self.of_marks[turn.model] += max(0, plain) * (price.price_of_5m_write - price.input) / MILLION
        more = price.price_of_1h_write - price.price_of_5m_write
        self.of_one_hour[turn.model] += max(0, short - turn.lost.get("expired", 0)) * more / MILLION
        before = self._arrivals.get((turn.tenant, turn.model), turn.time)
        self._arrivals[turn.tenant, turn.model] = turn.time
        if is_first_turn(turn) and turn.time - before > HOUR:
            self.lost_for_hours[turn.model] += turn.lost_cost_of("expired") or 0.0
        rule = cache_rule(turn.model)
        if rule is None or rule.mark_field == "cache_control":
            self._add_step(turn, price, reused, is_long=long > 0)

    def _add_step(self, turn: Turn, price: PriceSettings, reused: int, *, is_long: bool) -> None:
        known = self._open.pop(turn.parent or 0, None) if turn.number != turn.session else None
        steps, lifetimes = known or ([], [])
        if known is None:
            self._sessions[turn.model].append((steps, lifetimes))
        shared = turn.prompt_tokens - turn.lost.get("new", 0) - turn.lost.get("changed", 0) if steps else reused
        steps.append(SessionStep(turn.prompt_tokens, shared, (turn.pause or 0.0) if steps else None, price))
        lifetimes.append(is_long)
        self._open[turn.number] = steps, lifetimes

    def saved_by_policy(self, model: str) -> float:
        """Return what `breakpoints = "auto"` with keep-warm requests saves, compared with the cheaper one of 5m and as logged."""
        survival, totals = PauseTimes().survival(), [0.0, 0.0, 0.0]
        for steps, lifetimes in self._sessions[model]:
            price = steps[0].price
            if price is not None:
                session, is_long = [*steps, SessionStep(0, steps[-1].tokens, inf)], iter(lifetimes)
                totals[0] += session_price(session, _never_keep_warm, lambda new, rest: False, price)
                totals[1] += session_price(session, _never_keep_warm, partial(_next, is_long), price)
                totals[2] += provider_policy_price(session, survival, price)
        return (min(totals[:2]) - totals[2]) / MILLION


def is_first_turn(turn: Turn) -> bool:
    """Whether a turn can reuse only the beginning of other sessions."""
    return turn.turn == 1 or turn.number == turn.session


def _never_keep_warm(tokens: int, kept: int) -> float:
    return 0.0


def _next(lifetimes: Iterator[bool], new: int, unprotected: int) -> bool:
    return next(lifetimes)
