"""Reads the columns of a table that state facts about requests: model, time, numbers of tokens, and labels."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kvproxy.analyse.log_formats.amounts import currency_beside, currency_named, read_amount
from kvproxy.analyse.log_formats.counts import is_unreadable, read_count
from kvproxy.analyse.log_formats.labels import LABEL_FIELDS, labels_of
from kvproxy.analyse.log_formats.log_format import LoggedRequest, first_of
from kvproxy.analyse.log_formats.log_times import TIME_FIELDS, is_date, logged_time, parse_time, time_field
from kvproxy.analyse.log_formats.periods import Period, Unit, read_period
from kvproxy.apis.json import Json, JsonObject
from kvproxy.settings.journal import LIST_CURRENCY
from kvproxy.units import letters_of

_SLUG, _USAGE = "slug", "usage"  # The model and its money in the activity of OpenRouter.
MODELS = (*"model model_name model_id model_version model_permaslug request_model response_model modell".split(), _SLUG)
_UNWRITTEN, _CURSOR_WRITTEN = "input_w_o_cache_write", "input_w_cache_write"  # In the usage of Cursor.
INPUT = "input_tokens", "prompt_tokens", "tokens_prompt", "n_context_tokens_total", "eingabe_tokens", _UNWRITTEN
OUTPUT = "output_tokens", "completion_tokens", "tokens_completion", "n_generated_tokens_total", "ausgabe_tokens"
_CACHED = "cached_tokens", "input_cached_tokens", "cached_input_tokens", "tokens_cached", "cached_input"
_HELICONE_READ, _HELICONE_WRITTEN, _TOTAL = "prompt_cache_read_tokens", "prompt_cache_write_tokens", "total_tokens"
_READ = "cache_read_input_tokens", "cache_read_tokens", "cache_read", _HELICONE_READ
_WRITTEN = (
    *"cache_creation_input_tokens cache_creation_tokens cache_creation cache_write_input_tokens cache_write_tokens".split(),
    *("cache_write", "cache_write_5m_tokens", "cache_creation_5m_tokens", "ephemeral_5m_input_tokens"),
    *(_HELICONE_WRITTEN, _CURSOR_WRITTEN),
)
_WRITTEN_1H = "cache_write_1h_tokens", "cache_creation_1h_tokens", "ephemeral_1h_input_tokens"
REQUESTS = (
    *"num_model_requests num_requests n_requests requests request_count total_requests api_requests".split(),
    *"count calls num_calls api_calls anfragen".split(),
)
_UNITS: dict[str, Unit] = {
    **dict.fromkeys("date day usage_date usage_date_time usage_date_utc charge_period_start datum".split(), "day"),
    **dict.fromkeys("usage_start_date line_item_usage_start_date start_date".split(), "day"),
    **dict.fromkeys(("week", "woche"), "week"),
    **dict.fromkeys("month usage_month billing_month invoice_month monat".split(), "month"),
    **dict.fromkeys(("quarter", "quartal"), "quarter"),
    **dict.fromkeys("period billing_period zeitraum".split(), "day"),
}
DATES = tuple(_UNITS)
"""Columns with the period of a sum; the first one with a text counts."""
COSTS = "cost_total", "cost_usd", "total_cost_usd", "spend", "response_cost", "cost", "total_cost", _USAGE
"""Money in US dollars, or in the currency of another column."""
CURRENCY = "currency"
_OF_CURRENCY = "cost", "total_cost"
"""Money only if a column or the cell has its currency."""
_COUNTS = (*INPUT, *OUTPUT, *_CACHED, *_READ, *_WRITTEN, *_WRITTEN_1H, _TOTAL, *REQUESTS)
_FACTS = (*MODELS, *_COUNTS, *COSTS, CURRENCY, *TIME_FIELDS, *DATES, *LABEL_FIELDS)
_THOUSANDS = re.compile(r"\d{1,3}(?:\.\d{3})+")
_POINTS = re.compile(r"\d{1,3}(?:\.\d{3}){2,}")


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of a row; None if unknown. `prompt` includes the tokens of the provider's cache."""

    prompt: int | None
    completion: int | None
    cached: int | None = None
    written: int | None = None
    written_1h: int | None = None


def fact_headings(names: Iterable[str]) -> dict[str, str]:
    """Return the facts of a table's columns by heading, which may differ in case, spaces, and punctuation."""
    return dict(_fact_headings(tuple(names)))


@lru_cache(maxsize=64)
def _fact_headings(names: tuple[str, ...]) -> Mapping[str, str]:
    # Cached, because each row asks.
    known = {letters_of(fact): fact for fact in reversed(_FACTS)} | {fact: fact for fact in _FACTS}
    facts = {name: known.get(name) or known.get(letters_of(name)) for name in names}
    # Of two headings of one fact, the exact one counts.
    exact = {name for name, fact in facts.items() if name == fact}
    ignored = (
        *(() if CURRENCY in facts.values() else _OF_CURRENCY),
        *(() if _SLUG in facts.values() else (_USAGE,)),
    )
    return {
        name: fact
        for name, fact in facts.items()
        if fact is not None and fact not in ignored and (name == fact or fact not in exact)
    }


def row_headings(row: JsonObject) -> dict[str, str]:
    """Return the facts of a row's columns by heading, also of money whose cell has its currency, such as $1.25."""
    with_currency = fact_headings((*row, CURRENCY))
    stated = {name: fact for name, fact in with_currency.items() if currency_beside(row.get(name))}
    return fact_headings(row) | stated


def with_plain_counts(rows: Sequence[tuple[int, JsonObject]]) -> list[tuple[int, JsonObject]]:
    """Return the rows of a table with 1000 for a count 1.000, if one such as 1.000.000 shows what its points separate."""
    names = dict.fromkeys(name for _, row in rows for name in row)
    counts = [name for name, fact in fact_headings(names).items() if fact in _COUNTS]
    if not any(_POINTS.fullmatch(str(row.get(name)).strip()) for _, row in rows for name in counts):
        return list(rows)
    return [
        (number, row | {name: _without_points(row[name]) for name in counts if name in row}) for number, row in rows
    ]


def _without_points(cell: Json) -> Json:
    is_count = isinstance(cell, str) and _THOUSANDS.fullmatch(cell.strip())
    return cell.replace(".", "") if isinstance(cell, str) and is_count else cell


def facts_of(row: JsonObject, headings: Mapping[str, str]) -> JsonObject:
    return {fact: row[heading] for heading, fact in headings.items() if heading in row}


def unreadable_columns(row: JsonObject, headings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the headings of a row's cells that should have a count or a time, and have another text."""
    return tuple(name for name, fact in headings.items() if _is_unreadable(fact, row.get(name)))


def _is_unreadable(fact: str, cell: Json) -> bool:
    if fact in (*TIME_FIELDS, *DATES):
        return cell not in (None, "") and time_of({fact: cell}) is None
    if fact in COSTS:
        return cell not in (None, "") and read_amount(cell) is None
    return fact in _COUNTS and is_unreadable(cell)


def token_counts(facts: JsonObject) -> TokenCounts:
    prompt, completion, cached, read, written, hour = (
        read_count(first_of(facts, *names)) for names in (INPUT, OUTPUT, _CACHED, _READ, _WRITTEN, _WRITTEN_1H)
    )
    if _CURSOR_WRITTEN in facts and None not in (prompt, written):
        written = _written_at_cursor(facts, prompt or 0, written or 0, (read or 0) + (completion or 0))
        prompt = prompt if written is not None else None
    of_cache = (read or 0) + (written or 0) + (hour or 0)
    if prompt is not None and cached is None and _is_cache_beside_input(facts, prompt, completion, of_cache):
        prompt += of_cache
    return TokenCounts(prompt, completion, read if cached is None else cached, written, hour)


def _written_at_cursor(facts: JsonObject, without: int, with_writes: int, others: int) -> int | None:
    """Return the tokens that were written to the cache: the total shows whether they are beside the other input or include it.

    None if it shows neither.
    """
    total = read_count(facts.get(_TOTAL))
    if with_writes == 0 or total == with_writes + without + others:
        return with_writes
    return with_writes - without if total == with_writes + others and with_writes >= without else None


def _is_cache_beside_input(facts: JsonObject, prompt: int, completion: int | None, of_cache: int) -> bool:
    """Whether the tokens of the provider's cache are beside the input, as Anthropic and Helicone count them.

    The total shows if they are not.
    """
    is_of_helicone = bool(facts.keys() & {_HELICONE_READ, _HELICONE_WRITTEN})
    is_total = read_count(facts.get(_TOTAL)) == prompt + (completion or 0) and (is_of_helicone or of_cache <= prompt)
    return not is_total and (is_of_helicone or not facts.keys().isdisjoint(("input_tokens", _UNWRITTEN)))


def currency_of(facts: JsonObject) -> str:
    """Return the currency of the first amount of `COSTS`."""
    name = next((name for name in COSTS if read_amount(facts.get(name))), "")
    if name.endswith("usd"):
        return LIST_CURRENCY
    return currency_named(facts.get(CURRENCY)) or currency_beside(facts.get(name)) or LIST_CURRENCY


def model_of(facts: JsonObject) -> str:
    return next((str(facts[name]) for name in MODELS if facts.get(name)), "")


def time_of(facts: JsonObject) -> float | None:
    """Return the time of a row, or the start of its period, in seconds since the epoch; None if it is unknown."""
    if (time := logged_time(facts)) is not None:
        return time
    period = period_of(facts)
    return parse_time(facts.get(_date_field(facts))) if period is None else period.start


def period_of(facts: JsonObject) -> Period | None:
    """Return the period of which a row is the sum; None for a row with a time of day, and without a readable period."""
    if (name := time_field(facts)) is not None:
        return read_period(facts[name]) if is_date(facts[name]) else None
    name = _date_field(facts)
    return read_period(facts.get(name), _UNITS.get(name, "day"))


def has_date_only(facts: JsonObject) -> bool:
    """Whether a row has a column for dates or periods, readable or not, and no time of day."""
    if (name := time_field(facts)) is not None:
        return is_date(facts[name])
    name = _date_field(facts)
    return bool(name) and (period_of(facts) is not None or ":" not in str(facts[name]))


def _date_field(facts: JsonObject) -> str:
    return next((name for name in DATES if facts.get(name)), "")


def with_facts(request: LoggedRequest, facts: JsonObject) -> LoggedRequest:
    """Return a request with the facts of its row. A number that is no number of tokens is unknown."""
    labels, model, tokens = labels_of(facts), model_of(facts), token_counts(facts)
    usage: JsonObject = {"prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion}
    details: JsonObject = {} if tokens.cached is None else {"cached_tokens": tokens.cached}
    if tokens.written is not None:
        details["cache_write_tokens"] = tokens.written
    if details:
        usage["prompt_tokens_details"] = details
    return replace(
        request,
        body=request.body | ({"model": model} if model else {}),
        names_model=bool(model),
        time=time_of(facts),
        response=None if tokens.prompt is None else {"usage": usage},
        project=labels.project,
        client=labels.client,
        team=labels.team,
    )
