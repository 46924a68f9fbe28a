"""Reads the requests of a log in the format that its rows have; `log_formats/` has the formats."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import cached_property
from pathlib import Path

from kvproxy.analyse.bills.cost_reports import read_costs
from kvproxy.analyse.bills.cost_tables import MONEY_NAMES, OF_MONEY, PROVIDER_COLUMNS, money_headings
from kvproxy.analyse.bills.reported_costs import CostReport
from kvproxy.analyse.log_formats.amounts import with_decimal_points
from kvproxy.analyse.log_formats.dates import with_iso_dates
from kvproxy.analyse.log_formats.fact_columns import (
    COSTS,
    CURRENCY,
    REQUESTS,
    fact_headings,
    facts_of,
    row_headings,
    unreadable_columns,
    with_facts,
    with_plain_counts,
)
from kvproxy.analyse.log_formats.json_texts import decoded
from kvproxy.analyse.log_formats.log_format import (
    LogFormat,
    LoggedRequest,
    Row,
    SkipRow,
    WithoutPrompts,
    api_of_response,
)
from kvproxy.analyse.log_formats.logged_costs import logged_cost
from kvproxy.analyse.log_formats.pages import Page, read_page
from kvproxy.analyse.log_formats.registry import PROMPTS, format_names, log_formats
from kvproxy.analyse.log_formats.requests import BODY_FIELDS, OUTPUT_FORMATS, read_fields
from kvproxy.analyse.log_formats.rows import PLACED_CAUSES, FileRows, read_rows
from kvproxy.analyse.log_formats.sum_rows import sum_rows
from kvproxy.analyse.log_formats.table_shapes import (
    with_currencies,
    with_items_in_rows,
    with_periods_in_rows,
    with_years,
)
from kvproxy.analyse.log_formats.usage_reports import EXTRA_COLUMNS, OF_SUMS, USAGE_TABLE, with_assumed_sums
from kvproxy.analyse.unread_logs import describe_empty, describe_unknown
from kvproxy.apis import APIS
from kvproxy.apis.json import Json, JsonObject, dumps, objects
from kvproxy.errors import InvalidRequest, describe_cause
from kvproxy.units import format_line_numbers, letters_of, plural

_SAMPLE = 1_000
_LONGEST_NAME = 200
_REPEATED = "repeated (the same row with the same id)"
_OF_TOKENS = re.compile("token|cach|usd|eur|charge", re.IGNORECASE)
_IDS = ("id", "request_id", "requestId", "spanId", "span_id", "resourceSpans")
_PLAIN_FORMATS = ("requests", "completions", "openpipe")


@dataclass(frozen=True, slots=True)
class LineError:
    line: int
    message: str


@dataclass
class RequestLog:
    """The content of a log, in file order.

    Attributes:
        format: name of the format for people.
        rows: number of rows, with or without a request, and of lines that are no row.
        skipped: numbers of the rows without a request to a cached API, by cause.
        errors: of the malformed rows.
        shared_days: UTC days of which several files have sums of usage of one model, or costs of one item, and their names.
        pages: those of a list, such as a report of an admin API.
        ignored_fields: fields of rows that are not read: no fields of a request, and no response, time, route, or status.
        lacks_prompts: rows are malformed only because they have no prompts, which a bill does not need.
    """

    format: str
    rows: int = 0
    requests: list[LoggedRequest] = dataclass_field(default_factory=list)
    skipped: dict[str, list[int]] = dataclass_field(default_factory=lambda: defaultdict(list))
    errors: list[LineError] = dataclass_field(default_factory=list)
    ignored_fields: set[str] = dataclass_field(default_factory=set)
    shared_days: dict[str, list[str]] = dataclass_field(default_factory=dict)
    pages: list[Page] = dataclass_field(default_factory=list)
    costs: list[CostReport] = dataclass_field(default_factory=list)
    lacks_prompts: bool = False

    @cached_property
    def num_conversations(self) -> int:
        """Number of requests that continue no earlier request."""
        return count_conversations(self.requests)

    @property
    def num_requests(self) -> int | None:
        """Number of requests, including those that reports of usage sum. None if a report does not state it."""
        counts = [1 if request.summed is None else request.summed.requests for request in self.requests]
        return None if None in counts else sum(filter(None, counts))

    @property
    def is_usage_report(self) -> bool:
        return all(request.summed is not None for request in self.requests)

    @property
    def num_skipped(self) -> int:
        return sum(map(len, self.skipped.values()))

    def describe_skipped(self) -> str:
        """Return the number of rows by cause, and the lines of a file of JSON lines that are no object."""
        causes = []
        for cause, rows in sorted(self.skipped.items(), key=lambda item: -len(item[1])):
            place = f" ({format_line_numbers(rows)})" if cause.startswith(PLACED_CAUSES) else ""
            causes.append(f"{len(rows):,} {cause}{place}")
        return ", ".join(causes)

    @property
    def num_responses(self) -> int:
        return sum(request.response is not None for request in self.requests)

    @cached_property
    def other_apis(self) -> Counter[str]:
        """Numbers of responses of another API than their request, by the API of the response; they are not stored."""
        return Counter(
            name
            for request in self.requests
            if isinstance(request.response, dict)
            and (name := api_of_response(request.response)) is not None
            and name != request.api.name
        )

    @property
    def unreadable(self) -> dict[str, list[int]]:
        """Numbers of the rows with unreadable cells, by the heading of their column."""
        rows = defaultdict[str, list[int]](list)
        for request in self.requests:
            for heading in request.unreadable:
                rows[heading].append(request.line)
        for report in self.costs:
            for heading, numbers in report.unreadable.items():
                rows[heading] += numbers
        return rows

    @property
    def unread_amounts(self) -> list[str]:
        """Unread columns of a table of usage whose headings sound like tokens or money."""
        names = self.ignored_fields if self.is_usage_report else ()
        return sorted(name for name in names if _OF_TOKENS.search(name) or OF_MONEY.search(name))

    @property
    def num_without_model(self) -> int:
        return sum(not request.names_model for request in self.requests)

    @property
    def has_tools(self) -> bool:
        return any(request.body.get("tools") for request in self.requests)


def read_log(
    file: Path,
    text: str,
    model: str,
    system: str | None = None,
    *,
    format: str | None = None,
    column: str | None = None,
    answer_column: str | None = None,
    known_rows: set[int] | None = None,
    for_bill: bool = False,
    reads_facts: bool = False,
    with_outputs: bool = False,
) -> RequestLog:
    """Parse all requests of a log. Raises InvalidRequest if it has no known format, or no request.

    It is WithoutPrompts for a log that has a bill.
    A log whose requests are all in `known_rows` has none, which is no error.

    Args:
        file: name of the log in error messages.
        model: model of requests without a model.
        system: system prompt of plain prompts.
        format: name of the format; by default, the one whose signature the rows match. `prompts` reads each line as a
            prompt, except blank lines and comments that start with `#`.
        column: name of the column or field of the rows that has a question; each one is a request.
        answer_column: name of the column with the answer to the question of `column`, which becomes the response.
        known_rows: digests of rows with an id in other logs, which count once; those of this log are added.
        for_bill: read usage without prompts, and reports of costs, too.
        with_outputs: read the outputs of batches, which have no prompts, to join them with their input.
        reads_facts: with `column`, read model, time, tokens, and labels in other columns, too.
    """
    if format is not None and column is not None:
        raise InvalidRequest("give one of --format and --column")
    if format is not None and format not in format_names():
        raise InvalidRequest(f"unknown format {format!r}: use one of {', '.join(format_names())}")
    if column is not None:
        log = _read_columns(file, text, column, answer_column, model, system, reads_facts=reads_facts)
    elif format == PROMPTS:
        log = _read_prompts(text, model, system)
    else:
        content = read_rows(file, text)
        if content.is_table:
            content.rows = _with_plain_cells(content.rows)
        if for_bill and format is None and (costs := read_costs(content.rows)) is not None:
            return RequestLog("report of costs", content.num_rows, errors=_line_errors(content), costs=[costs])
        chosen = _choose_format(file, content, format, for_bill=for_bill)
        others = log_formats() if format is None else ()
        seen = set() if known_rows is None else known_rows
        log = _read_rows(content, chosen, model, others, seen, for_bill=for_bill, with_outputs=with_outputs)
        log.pages = [read_page(str(file), page) for page in content.pages]
    if not log.requests and _REPEATED not in log.skipped:
        raise (WithoutPrompts if log.lacks_prompts else InvalidRequest)(_no_requests(file, log))
    return log


def _with_plain_cells(rows: Sequence[tuple[int, JsonObject]]) -> list[tuple[int, JsonObject]]:
    """Return the rows of a table with dates, counts, and amounts in one form, if other cells of their column show theirs."""
    rows = with_currencies(with_periods_in_rows(with_items_in_rows(with_years(rows))), MONEY_NAMES, PROVIDER_COLUMNS)
    names = dict.fromkeys(name for _, row in rows for name in row)
    return with_decimal_points(with_plain_counts(with_iso_dates(rows)), money_headings(names))


def _no_requests(file: Path, log: RequestLog) -> str:
    if log.errors:
        return f"{file}, line {log.errors[0].line}: {log.errors[0].message}"
    causes = log.describe_skipped()
    return f"{file} contains no requests" + (f": {causes}" if causes else "")


def _choose_format(file: Path, content: FileRows, name: str | None, *, for_bill: bool) -> LogFormat:
    formats = log_formats()
    if name is not None:
        return next(log_format for log_format in formats if log_format.name == name)
    sample = [value for _, value in content.rows[:_SAMPLE]]
    if not sample:
        raise InvalidRequest(describe_empty(file, content))
    if not content.is_table and (costs := read_costs(content.rows)) is not None:
        # Its periods have the fields of a report of usage.
        raise WithoutPrompts(f"{file} is {costs}")
    first_matches = [_first_match(value, formats) for value in sample]
    counts = [first_matches.count(log_format) for log_format in formats]
    chosen = formats[counts.index(max(counts))]
    # A column of texts may be prompts, questions, or templates.
    is_guess = content.is_table and chosen.name in _PLAIN_FORMATS and not any(map(_has_json_request, sample))
    if not max(counts) or is_guess:
        if content.is_table and (costs := read_costs(content.rows)) is not None:
            raise WithoutPrompts(f"{file} is {costs}; if a column has questions, name it with --column")
        raise InvalidRequest(describe_unknown(file, content, formats, for_bill=for_bill))
    return chosen


def _first_match(value: JsonObject, formats: Sequence[LogFormat]) -> LogFormat | None:
    return next((log_format for log_format in formats if log_format.matches(value)), None)


def _has_json_request(value: JsonObject) -> bool:
    names = (*BODY_FIELDS, "messages", "input")
    return any(isinstance(decoded(value.get(name)), dict | list) for name in names)


def _read_rows(
    content: FileRows,
    chosen: LogFormat,
    model: str,
    others: Sequence[LogFormat],
    known_rows: set[int],
    *,
    for_bill: bool,
    with_outputs: bool,
) -> RequestLog:
    """Read rows in the chosen format, and each row without its fields in the first matching format of `others`."""
    num_others = Counter[str]()
    layout = f" in {content.envelope}" if content.envelope else " in a table" if content.is_table else ""
    log = RequestLog(f"{chosen.title}{layout}", content.num_rows, skipped=content.skipped)
    log.errors = _line_errors(content)
    for number, value in content.rows:
        own = chosen if chosen.matches(value) else _first_match(value, others) or chosen
        reads_usage = for_bill or (with_outputs and own.name in OUTPUT_FORMATS)
        read = own.read_usage if reads_usage and own.read_usage is not None else own.read
        try:
            requests = list(read(Row(number, value, model)))
        except SkipRow as cause:
            log.skipped[str(cause)].append(number)
        except InvalidRequest as error:
            log.errors.append(LineError(number, error.message))
            log.lacks_prompts |= own.read_usage is not None and not reads_usage
        except (KeyError, TypeError, ValueError) as error:
            missing = own.missing(value)
            lacks = (
                f"the row lacks {', '.join(missing)}" if missing else f"the row is malformed ({describe_cause(error)})"
            )
            log.errors.append(LineError(number, lacks.replace("|", " or ")))
        else:
            if any(_is_dated_and_has_id(request, value) for request in requests):
                row = hash(dumps(value, sort_keys=True))
                if row in known_rows:
                    log.skipped[_REPEATED].append(number)
                    continue
                known_rows.add(row)
            if len(requests) == 1 and requests[0].cost is None:
                requests = [replace(requests[0], cost=logged_cost(value, own.costs, requests[0].response))]
            if for_bill or content.is_table:
                requests = [replace(request, columns=_columns(value)) for request in requests]
            log.requests += requests
            num_others[own.title] += own is not chosen
            if not requests:
                log.skipped["no request"].append(number)
            elif own.name == USAGE_TABLE:
                log.ignored_fields |= set(value) - set(row_headings(value)) - EXTRA_COLUMNS
            elif own.name == "requests" and not any(name in value for name in BODY_FIELDS):
                given = {name for name, content in value.items() if content not in (None, "")}
                log.ignored_fields |= given - set(requests[0].body) - read_fields(value)
    if chosen.name == USAGE_TABLE:
        if sums := sum_rows(log.requests):
            log.requests = [request for request in log.requests if request.line not in sums]
            log.skipped[OF_SUMS] += sorted(sums)
        log.requests = with_assumed_sums(log.requests)
    log.errors.sort(key=lambda error: error.line)
    log.format += "".join(f" ({plural(count, 'row')} as {title})" for title, count in num_others.items() if count)
    return log


def _columns(value: JsonObject) -> dict[str, str]:
    """Return the short cells of a row, by `letters_of` the heading."""
    return {
        letters_of(name): str(cell)
        for name, cell in value.items()
        if isinstance(cell, str | int) and len(str(cell)) <= _LONGEST_NAME
    }


def _is_dated_and_has_id(request: LoggedRequest, value: JsonObject) -> bool:
    """Whether a second equal row is a copy of the row, and no second request."""
    return request.time is not None and any(value.get(name) for name in _IDS)


def _read_prompts(text: str, model: str, system: str | None) -> RequestLog:
    log = RequestLog("prompts")
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        content = line.strip()
        log.rows += 1
        if not content or content.startswith("#"):
            log.skipped["comment" if content else "blank"].append(number)
            continue
        log.requests.append(_request_of_prompt(number, content, model, system))
    return log


def _read_columns(
    file: Path,
    text: str,
    question: str,
    answer: str | None,
    model: str,
    system: str | None,
    *,
    reads_facts: bool,
) -> RequestLog:
    content, columns = read_rows(file, text), [question] if answer is None else [question, answer]
    names = dict.fromkeys(name for _, value in content.rows for name in value)
    if not names:
        raise InvalidRequest(describe_empty(file, content))
    for column in columns:
        if column not in names:
            raise InvalidRequest(f"{file} has no column {column!r}: it has {', '.join(names)}")
    headings = fact_headings(name for name in names if reads_facts and name not in columns)
    facts = {name: fact for name, fact in headings.items() if fact not in (*REQUESTS, *COSTS, CURRENCY)}
    used = f", with {', '.join(facts)}" if facts else ""
    title = f"the {'columns' if answer else 'column'} {' and '.join(columns)}{used}"
    log = RequestLog(title, content.num_rows, skipped=content.skipped, errors=_line_errors(content))
    log.ignored_fields = {*names} - {*columns, *facts} if reads_facts else set()
    for number, value in content.rows:
        causes = [cause for column in columns if (cause := _why_no_text(value, column, content)) is not None]
        if causes:
            log.skipped[causes[0]].append(number)
            continue
        request = _request_of_prompt(number, str(value[question]).strip(), model, system)
        if facts:
            request = with_facts(request, facts_of(value, facts))
            request = replace(request, unreadable=unreadable_columns(value, facts))
        log.requests.append(request if answer is None else replace(request, response=str(value[answer])))
    return log


def _why_no_text(row: JsonObject, column: str, content: FileRows) -> str | None:
    """Return why a row has no text in a column; None if it has one."""
    # A row of a table lacks its empty cells.
    text = row.get(column, "" if content.is_table else None)
    if isinstance(text, str):
        return None if text.strip() else "blank"
    return f"whose {column} is not text" if column in row else f"without {column}"


def _line_errors(content: FileRows) -> list[LineError]:
    return [LineError(number, error) for number, error in content.invalid.items()]


def _request_of_prompt(line: int, prompt: str, model: str, system: str | None) -> LoggedRequest:
    before: list[Json] = [{"role": "system", "content": system}] if system else []
    messages: list[Json] = [*before, {"role": "user", "content": prompt}]
    return LoggedRequest(line, APIS["chat"], {"model": model, "messages": messages, "stream": False})


def count_conversations(requests: list[LoggedRequest]) -> int:
    """Count the requests that do not begin with all messages of an earlier request."""
    known: set[int] = set()
    count = 0
    for request in requests:
        name = "messages" if "messages" in request.body else "input"
        digests = [hash(dumps(turn, sort_keys=True)) for turn in objects(request.body.get(name))]
        prefixes = [hash(tuple(digests[: end + 1])) for end in range(len(digests))]
        count += not any(prefix in known for prefix in prefixes[:-1])
        if prefixes:
            known.add(prefixes[-1])
    return count
