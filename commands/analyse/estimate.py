"""`kvproxy estimate`: what would both caches save on a log?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from kvproxy.commands.analyse.estimate_notes import assumptions, hit_sentences
from kvproxy.commands.analyse.options import (
    DEFAULT_BLOCK_SIZE,
    OF_SESSIONS,
    BlockSize,
    Column,
    FormatOption,
    LogModel,
    Logs,
    StrictOption,
    Tokenizer,
    describe_log,
    format_pool_size,
    log_document,
    log_files,
    parse_sizes,
    read_requests,
    reject_incomplete,
    reject_options,
    report_source,
    report_table,
    save_report,
)
from kvproxy.commands.analyse.session_report import (
    SessionsOption,
    print_costs,
    read_session_report,
    read_spending,
    with_prices,
)
from kvproxy.commands.formatting import decimal, money, percent
from kvproxy.commands.journal.spending import (
    NO_BILL,
    SPENDING,
    group_cells,
    group_record,
    left_out_of_bill,
    record_fields,
    spending_output,
)
from kvproxy.commands.options import WRITES, Data, Plot, groups_option, load_settings, since_option, time_option
from kvproxy.commands.output import Output, print_note, print_text, progress_bar
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.tables import ListLayout, Row, number_column, print_table
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.analyse.estimate import Estimate, HitSavings
    from kvproxy.analyse.request_log import RequestLog
    from kvproxy.analyse.session_report import SessionReport
    from kvproxy.settings.journal import PriceSettings

_PREFILL_RATE, _DECODE_RATE, _DRAWS = 10_000.0, 50.0, 3


def estimate(
    logs: Logs,
    tokenizer: Tokenizer = None,
    block_size: BlockSize = DEFAULT_BLOCK_SIZE,
    blocks: Annotated[str | None, Option(help="Pool sizes in blocks, such as 1000,5000.")] = None,
    model: LogModel = "model",
    price: Annotated[
        str | None,
        Option(
            help="Price of a million input, output, and cached tokens of all models, and of tokens cached for five"
            " minutes and for an hour, such as 3,15,0.3,3.75,6, for prompts of any length; missing ones have"
            " the provider's ratios.",
            show_default="[journal.prices] and list prices",
        ),
    ] = None,
    prefill_rate: Annotated[float, Option(help="Prompt tokens per second of the engine.", min=1)] = _PREFILL_RATE,
    decode_rate: Annotated[float, Option(help="Response tokens per second of a request.", min=1)] = _DECODE_RATE,
    plot: Plot = None,
    report: Annotated[Path | None, Option(help="Write a report to this .html file."), WRITES] = None,
    draws: Annotated[int, Option(help="Replays of a log with responses; exploration varies.", min=1)] = _DRAWS,
    as_model: Annotated[
        str | None,
        Option(help="With --by, for the cost: also list the cost of the same tokens at today's prices of this model."),
    ] = None,
    sessions: SessionsOption = False,
    by: Annotated[
        str | None,
        groups_option(
            "List the savings, or for transcripts and with --sessions the cost of the requests, by one or several fields"
        ),
    ] = None,
    since: Annotated[
        Any, since_option(help="With --by, for the cost: only requests since then: 7d, 2026-11-28, today.")
    ] = None,
    until: Annotated[float | None, time_option(help="With --by, for the cost: only requests before this time.")] = None,
    layout: Annotated[
        ListLayout, RowFields("kvproxy.commands.analyse.estimate:savings_fields", *SPENDING, sessions=SPENDING)
    ] = ListLayout(),
    strict: StrictOption = False,
    format: FormatOption = None,
    column: Column = None,
    data: Data = None,
) -> Output:
    """Estimate from a log what caching would save.

    The log is replayed in this process, with an empty cache and the settings of the data folder. If the log has responses,
    semantic hits are compared with them.

    For transcripts of agents (Claude Code, Codex, opencode, or traces of WEKA), it reports the cost of the input, the part that
    each cause of lost reuse adds, and the cost of other ways to keep prefixes cached during pauses.

    Files of a folder are read in the format that each has; notes name the files that are left out.

    Example: kvproxy estimate requests.jsonl --tokenizer ./model --price 2.5,10,1.25 --plot estimate.svg

    Example: kvproxy estimate requests.jsonl --report estimate.html

    With --by, it lists the savings of hits by local day, model, client, team, or project. For transcripts, and with --sessions,
    it lists the prices of input and output, with the share of cached input and the price of lost reuse. Files of
    resumed sessions repeat requests, which count once. The project of a transcript is its folder.

    Reports of usage and of costs have no prompts, so it lists the spent money, by model unless --by is given.

    Example: kvproxy estimate usage.csv costs.csv

    Example: kvproxy estimate ~/.claude/projects

    Example: kvproxy estimate ~/.claude/projects --by day

    Example: kvproxy estimate ~/.claude/projects --by project --since yesterday --until today

    Example: kvproxy estimate usage.json --by month,model --as-model gpt-5-mini
    """
    import asyncio

    from kvproxy.analyse.estimate import estimate as run
    from kvproxy.analyse.estimate import estimate_charts
    from kvproxy.analyse.log_formats.log_format import WithoutPrompts
    from kvproxy.analyse.log_tokenizer import load_log_tokenizer
    from kvproxy.analyse.request_log import RequestLog
    from kvproxy.commands.files import check_writable, save_charts
    from kvproxy.journal.period import start_time

    check_writable(report, (".html",))
    if column is not None and sessions:
        raise typer.BadParameter("--column is for questions, so --sessions does not apply")
    if by is not None and (report is not None or plot is not None):
        raise typer.BadParameter("--by prints a table: it has no --report and no --plot")
    own_prices = _command_line_prices(price)
    for_requests: dict[str, tuple[object, object]] = {
        "--tokenizer": (tokenizer, None),
        "--block-size": (block_size, DEFAULT_BLOCK_SIZE),
        "--blocks": (blocks, None),
        "--prefill-rate": (prefill_rate, _PREFILL_RATE),
        "--decode-rate": (decode_rate, _DECODE_RATE),
        "--draws": (draws, _DRAWS),
        "--plot": (plot, None),
        "--report": (report, None),
    }
    settings = with_prices(load_settings(data=data), own_prices)
    with log_files(logs, with_transcripts=format is None and column is None) as files:

        def bill(*, has_prompts: bool = True) -> Output:
            reject_options(for_requests, OF_SESSIONS if has_prompts else "with files without prompts")
            reads_logs, start = sessions or not has_prompts, start_time(since, until)
            listed = read_spending(
                files, reads_logs, model, settings, format, by, start, until, as_model, strict=strict
            )
            if strict:
                reject_incomplete(list(left_out_of_bill(listed)))
            if not has_prompts:
                print_note(
                    f"no prompts to replay, so this is what was spent, by {listed.by} (--by); --column reads questions"
                )
            return spending_output(
                listed, layout, NO_BILL if since is None and until is None else "no request in the period"
            )

        if by is not None and (sessions or files.transcripts):
            return bill()
        try:
            costs = read_session_report(files, sessions, model, settings, format, strict=strict)
            content = RequestLog("")
            if costs is None:
                content = read_requests(files, model, format, tokenizer, column, strict=strict)
        except WithoutPrompts:
            return bill(has_prompts=False)
        if since is not None or until is not None or as_model is not None:
            raise typer.BadParameter(
                "--since, --until, and --as-model are for the cost of requests: --by, with transcripts or --sessions"
            )
        if by is None and layout != ListLayout():
            raise typer.BadParameter("--csv, --jsonl, --columns, and --wide are for the rows of --by: give it, too")
        if costs is not None:
            reject_options(for_requests, OF_SESSIONS)
            return Output(asdict(costs), lambda: _print_session_costs(costs, has_own_price=price is not None))
        loaded, sizes = load_log_tokenizer(tokenizer), parse_sizes(blocks, 2)
    with progress_bar("estimating") as progress:
        estimated = asyncio.run(run(content.requests, settings, loaded, block_size, sizes, progress, draws, by))
    charts = estimate_charts(estimated)
    save_charts(charts, plot)
    prefill_and_decode_rate, currency = (prefill_rate, decode_rate), settings.journal.currency
    if report is not None:
        _write_report(estimated, content, logs, tokenizer, prefill_and_decode_rate, currency, report, sizes)

    def show() -> None:
        if by is None:
            _print_estimate(estimated, prefill_and_decode_rate, currency, sizes)
        else:
            _print_groups(estimated, by, prefill_and_decode_rate, currency, layout)

    more = {"log": log_document(content, tokenizer), "currency": currency}
    document = _json_document(estimated, prefill_and_decode_rate) | more
    if by is None:
        return Output(document, show, charts=charts)
    note = "savings of hits; --sessions lists the cost of the requests"
    records = [group_record(group, by) | {"currency": currency} for group in document["groups"]]
    return Output(document, show, records=records, fields=savings_fields({"by": by}), note=note)


def savings_fields(options: Mapping[str, object]) -> list[str]:
    """Return the names of the fields of a group's savings with these values of options."""
    from kvproxy.analyse.estimate import GroupSavings

    return record_fields(GroupSavings, options)


def _print_session_costs(costs: "SessionReport", *, has_own_price: bool) -> None:
    print_costs(costs)
    models = {model for session in costs.sessions for model in session.models}
    if has_own_price and len(models) > 1:
        print_note(f"--price is the price of all {len(models)} models: without it, each has its own list price")


def _command_line_prices(price: str | None) -> "dict[str, PriceSettings] | None":
    if price is None:
        return None
    try:
        names = ("input", "output", "cached", "write_5m", "write_1h")
        amounts = dict(zip(names, map(float, price.split(",")), strict=False))
        are_valid = all(math.isfinite(amount) and amount >= 0 for amount in amounts.values())
        if not are_valid or len(amounts) < 2 or price.count(",") >= len(names):
            raise ValueError(price)
    except ValueError:
        raise typer.BadParameter(
            f"--price takes two to five numbers of at least 0, such as 2.5,10,1.25, not {price!r}"
        ) from None
    from kvproxy.settings.journal import PriceSettings

    return {"*": PriceSettings(**amounts)}


def _seconds_saved_by_hits(hits: "HitSavings", prefill_and_decode_rate: tuple[float, float]) -> float:
    prefill, decode = prefill_and_decode_rate
    return (hits.prompt_tokens - hits.cached_tokens) / prefill + hits.response_tokens / decode


def _format_saved_money(hits: "HitSavings", discount: float | None) -> str | None:
    is_bound = discount is None and hits.cached_tokens > 0
    return money(hits.money, is_bound=is_bound, leaves_out_models=hits.unpriced > 0)


def _print_estimate(
    estimated: "Estimate", prefill_and_decode_rate: tuple[float, float], currency: str, sizes: Sequence[int] | None
) -> None:
    print_table(_layer_rows(estimated, prefill_and_decode_rate, currency), title=plural(estimated.requests, "request"))
    for sentence in hit_sentences(estimated):
        print_text(sentence)
    title = f"{estimated.prefix.prompt_tokens:,} prompt tokens reach the engine"
    print_table(_pool_rows(estimated, prefill_and_decode_rate[0], currency, sizes), title=title)
    for sentence in assumptions(estimated, prefill_and_decode_rate):
        print_text(sentence)


def _print_groups(
    estimated: "Estimate",
    by: str,
    prefill_and_decode_rate: tuple[float, float],
    currency: str,
    layout: ListLayout,
) -> None:
    rows: list[Row] = [
        {
            **group_cells(group.name, group.groups, by),
            "Requests#": group.requests,
            number_column("Exact hits", "exact"): group.exact,
            number_column("Semantic hits", "semantic"): group.semantic,
            "Saved tokens#": group.saved_tokens,
            number_column("Cached anyway", "cached_tokens"): group.cached_tokens,
            number_column(f"Saved {currency}", "money"): money(
                group.money,
                is_bound=estimated.reuse_discount is None and group.cached_tokens > 0,
                leaves_out_models=group.unpriced > 0,
            ),
        }
        for group in estimated.groups
    ]
    records = [group_record(asdict(group), by) for group in estimated.groups]
    print_table(rows, layout=layout, records=records)
    for sentence in [*hit_sentences(estimated), *assumptions(estimated, prefill_and_decode_rate)]:
        print_text(sentence)


def _layer_rows(estimated: "Estimate", prefill_and_decode_rate: tuple[float, float], currency: str) -> list[Row]:
    layers = {"Exact hits": estimated.exact_savings, "Semantic hits": estimated.semantic_savings, "Engine": None}
    return [
        {
            "Answered by": name,
            "Requests#": hits.requests if hits else estimated.forwarded,
            "Share#": percent((hits.requests if hits else estimated.forwarded) / estimated.requests),
            "Saved tokens#": hits and hits.prompt_tokens + hits.response_tokens,
            "Cached anyway#": hits and hits.cached_tokens,
            "Saved seconds#": hits and decimal(_seconds_saved_by_hits(hits, prefill_and_decode_rate), 1),
            f"Saved {currency}#": hits and _format_saved_money(hits, estimated.reuse_discount),
        }
        for name, hits in layers.items()
    ]


def _pool_rows(estimated: "Estimate", prefill_rate: float, currency: str, sizes: Sequence[int] | None) -> list[Row]:
    """Return the reuse by pool size; without given sizes, the smallest pool of those with equal reuse."""
    from kvproxy.analyse.estimate import pool_money

    prefix, alone = estimated.prefix, estimated.prefix_alone
    pools = [
        (format_pool_size(point.blocks, prefix.block_size), point.reused, point.discounted, other.reused)
        for point, other in zip(prefix.points, alone.points, strict=True)
    ]
    if sizes is None:
        pools = [next(equal) for _, equal in groupby(pools, key=lambda pool: pool[1:])]
    return [
        {
            "Pool#": name,
            "Reused#": percent(prefix.share(reused)),
            "Saved seconds#": decimal(reused * estimated.token_scale / prefill_rate, 1),
            f"Saved {currency}#": money(pool_money(estimated, discounted)),
            "Without response cache#": percent(alone.share(other)),
        }
        for name, reused, discounted, other in [
            *pools,
            ("unlimited", prefix.unlimited, prefix.unlimited_discounted, alone.unlimited),
        ]
    ]


def _write_report(
    estimated: "Estimate",
    content: "RequestLog",
    logs: Sequence[Path],
    tokenizer: str | None,
    rates: tuple[float, float],
    currency: str,
    report: Path,
    sizes: Sequence[int] | None,
) -> None:
    from kvproxy.analyse.estimate import estimate_charts
    from kvproxy.analyse.report import Report

    times = [request.time for request in content.requests if request.time is not None]
    source = report_source(
        logs,
        (min(times), max(times)) if times else None,
        requests=estimated.requests,
        tokens=estimated.prefix_alone.prompt_tokens,
        currency=currency if estimated.exact_savings.money is not None else None,
        read_as=describe_log(content, tokenizer),
    )
    tables = [
        report_table(_layer_rows(estimated, rates, currency), "Requests"),
        report_table(
            _pool_rows(estimated, rates[0], currency, sizes),
            f"{estimated.prefix.prompt_tokens:,} tokens reach the engine",
        ),
    ]
    whole = Report(
        "Estimate of caching",
        hit_sentences(estimated),
        source,
        estimate_charts(estimated),
        tables,
        assumptions(estimated, rates),
    )
    save_report(whole, report)


def _json_document(estimated: "Estimate", prefill_and_decode_rate: tuple[float, float]) -> dict[str, Any]:
    from kvproxy.analyse.estimate import pool_money

    document = asdict(estimated)
    document["wrong"]["interval"] = estimated.wrong.interval
    for prefix in (document["prefix"], document["prefix_alone"]):
        for point in prefix["points"]:
            point["money"] = pool_money(estimated, point["discounted"])
    for name, hits in (("exact_savings", estimated.exact_savings), ("semantic_savings", estimated.semantic_savings)):
        document[name]["seconds"] = _seconds_saved_by_hits(hits, prefill_and_decode_rate)
    return document
