"""Sums the cost of the requests of logs by group."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kvproxy.analyse.bills.compared_costs import compare_reports, is_between
from kvproxy.analyse.bills.reported_costs import CostReport
from kvproxy.analyse.log_formats.counts import read_count
from kvproxy.analyse.log_formats.log_format import Assumption, LoggedRequest
from kvproxy.analyse.log_formats.usage_reports import LONGEST_PROMPT
from kvproxy.analyse.log_replay import reported_usage
from kvproxy.analyse.logged_turns import FIRST_TRACE_NUMBER, turns_of_requests
from kvproxy.analyse.simulate.trace_reader import TraceSession
from kvproxy.analyse.trace_turns import trace_turns
from kvproxy.apis.json import Json, field
from kvproxy.errors import NotFound
from kvproxy.journal.sessions.session_reader import (
    Turn,
)
from kvproxy.journal.sessions.spending_report import SpendingReport, spending_report
from kvproxy.journal.spending import PaidRequest
from kvproxy.providers.cost_comparison import rounding_error
from kvproxy.providers.prices import ModelPrices, is_dated, price_at
from kvproxy.settings.journal import (
    JournalSettings,
)


def report_spending(
    requests: Sequence[LoggedRequest],
    traces: Sequence[TraceSession],
    by: str,
    settings: JournalSettings,
    progress: Callable[[float], None] = lambda share: None,
    costs: Sequence[CostReport] = (),
    since: float | None = None,
    until: float | None = None,
    as_model: str | None = None,
) -> SpendingReport:
    """Report the cost of sessions by group, with the causes of lost reuse, and how reports of costs differ.

    `since` and `until` select requests and costs of the bill by their time in seconds since the epoch; all others remain
    causes. With `as_model`, the report has the cost of the same tokens with this model, too. Raises NotFound if it has no price.
    """
    prices = ModelPrices(settings)
    if as_model is not None and prices.at(as_model) is None:
        raise NotFound(f"no price of {as_model} is known: kvproxy prices ls --search NAME lists the known names")
    prompted = [request for request in requests if request.has_prompt]
    turns, without_usage = turns_of_requests(prompted, prices, settings.prices, progress)
    rounding = rounding_error(request.cost or 0.0 for request in requests)
    paid = [_paid_request(turn, prompted[int(turn.request_id) - 1], settings, rounding) for turn in turns]
    paid += [_reported_request(request, settings, rounding) for request in requests if not request.has_prompt]
    for number, trace in enumerate(traces):
        progress(number / len(traces))
        added = trace_turns(trace, FIRST_TRACE_NUMBER + len(turns), prices)
        turns += added
        paid += [_paid_request(turn, None, settings, rounding) for turn in added]
    billed, undated, cut_sums = paid, list[PaidRequest](), 0
    if since is not None or until is not None:
        dated = [request for request in paid if is_dated(request.time)]
        undated = [request for request in paid if not is_dated(request.time)]
        billed = [request for request in dated if is_between(request.time, since, until)]
        cut_sums = sum(_is_cut(request, bound) for request in dated for bound in (since, until) if bound is not None)
    report = replace(spending_report(billed, by, prices, settings.currency, as_model), undated=_number_of(undated))
    report = replace(
        report,
        other_currencies=_currencies_without_rate(requests, settings),
        web_searches=_count_web_searches(requests, since, until),
        assumed_single=_count_assumed("one request", requests, prices, (since, until)),
        assumed_short=_count_assumed("short prompts", requests, prices, (since, until)),
        cut_sums=cut_sums,
    )
    report.total.unreported += without_usage
    if not costs:
        return report
    return compare_reports(report, costs, billed, prices, settings, (since, until))


def _currencies_without_rate(requests: Iterable[LoggedRequest], settings: JournalSettings) -> list[str]:
    """Return the currencies of logged money without an exchange rate."""
    return sorted({each.currency for each in requests if each.cost and settings.exchange_rate(each.currency) is None})


def _count_assumed(
    assumption: Assumption,
    requests: Iterable[LoggedRequest],
    prices: ModelPrices,
    period: tuple[float | None, float | None],
) -> int:
    """Return the number of rows of a period with an assumption that decides their price."""
    return sum(
        each.summed is not None
        and each.summed.assumption == assumption
        and is_between(each.time, *period)
        and _has_length_price(each, each.summed.prompt_tokens if assumption == "one request" else None, prices)
        for each in requests
    )


def _has_length_price(request: LoggedRequest, prompt_tokens: int | None, prices: ModelPrices) -> bool:
    """Whether a prompt of this length, by default the longest, costs more per token than a short one."""
    model, time = str(request.body["model"]), request.time or 0.0
    longest = LONGEST_PROMPT if prompt_tokens is None else prompt_tokens
    return price_at(model, prices, time, 0) != price_at(model, prices, time, longest)


def _is_cut(request: PaidRequest, bound: float) -> bool:
    return request.time < bound < request.time + request.period


def _count_web_searches(requests: Iterable[LoggedRequest], since: float | None, until: float | None) -> int:
    """Return the number of web searches in a period, as Anthropic's usage states it."""
    used = (_usage_field(each, "server_tool_use") for each in requests if is_between(each.time, since, until))
    return sum(read_count(field(tools, "web_search_requests")) or 0 for tools in used)


def _usage_field(request: LoggedRequest, name: str) -> Json:
    """Return a field of the response's usage; None without it."""
    return field(request.response.get("usage"), name) if isinstance(request.response, dict) else None


def _number_of(requests: Sequence[PaidRequest]) -> int | None:
    counts = [request.count for request in requests]
    return None if None in counts else sum(filter(None, counts))


def _logged_cost(
    request: LoggedRequest | None, settings: JournalSettings, rounding: float
) -> tuple[float | None, float]:
    """Return the logged money in the currency of the settings, and its rounding error; None without an exchange rate."""
    rate = None if request is None else settings.exchange_rate(request.currency)
    if request is None or request.cost is None or rate is None:
        return None, 0.0
    return request.cost * rate, rounding * rate


def _paid_request(turn: Turn, request: LoggedRequest | None, settings: JournalSettings, rounding: float) -> PaidRequest:
    """Return a turn as a paid request; `rounding` is the error of logged money in its own currency."""
    logged_cost, logged_rounding = _logged_cost(request, settings, rounding)
    return PaidRequest(
        time=turn.time,
        model=turn.model,
        project="" if request is None else request.project,
        client="" if request is None else request.client,
        team="" if request is None else request.team,
        prompt_tokens=turn.prompt_tokens,
        completion_tokens=turn.completion_tokens,
        reused_tokens=turn.reused_tokens,
        written_5m=turn.written_5m,
        written_1h=turn.written_1h,
        pause=turn.pause,
        lost=turn.lost,
        service_tier=turn.service_tier,
        modalities=turn.modalities,
        logged_cost=logged_cost,
        logged_rounding=logged_rounding,
        columns={} if request is None else request.columns,
    )


def _reported_request(request: LoggedRequest, settings: JournalSettings, rounding: float) -> PaidRequest:
    """Return the usage of a request whose prompt is unknown, as are the causes of its lost tokens."""
    summed = request.summed or reported_usage(request)
    logged_cost, logged_rounding = _logged_cost(request, settings, rounding)
    return PaidRequest(
        time=request.time or 0.0,
        model=str(request.body["model"]),
        project=request.project,
        client=request.client,
        team=request.team,
        prompt_tokens=summed.prompt_tokens,
        completion_tokens=summed.completion_tokens,
        reused_tokens=summed.cached_tokens,
        written_5m=summed.written_5m,
        written_1h=summed.written_1h,
        service_tier=request.service_tier,
        modalities=request.modalities,
        lost=None,
        count=summed.requests,
        period=summed.seconds,
        priced_length=summed.priced_length,
        is_of_local_day=summed.is_of_local_day,
        logged_cost=logged_cost,
        logged_rounding=logged_rounding,
        provider=request.provider,
        columns=request.columns,
    )
