"""Reads the columns beside a question of a table: model, time, numbers of tokens, and labels."""

from dataclasses import replace

from kvproxy.analyse.log_formats.labels import LABEL_FIELDS, labels_of
from kvproxy.analyse.log_formats.log_format import TIME_FIELDS, LoggedRequest, first_of, logged_time
from kvproxy.apis.json import JsonObject

_PROMPT, _COMPLETION = ("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")
_CACHED = "cached_tokens", "input_cached_tokens", "cache_read_input_tokens"
FACT_COLUMNS = frozenset(("model", *_PROMPT, *_COMPLETION, *_CACHED, *TIME_FIELDS, *LABEL_FIELDS))


def with_facts(request: LoggedRequest, row: JsonObject) -> LoggedRequest:
    """Return a request with the facts of its row. A number that is no number of tokens is unknown."""
    labels, model = labels_of(row), row.get("model")
    prompt, completion, cached = (_count(row, *names) for names in (_PROMPT, _COMPLETION, _CACHED))
    usage: JsonObject = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return replace(
        request,
        body=request.body | ({"model": str(model)} if model else {}),
        names_model=bool(model),
        time=logged_time(row),
        response=None if prompt is None else {"usage": usage},
        project=labels.project,
        client=labels.client,
        team=labels.team,
    )


def _count(row: JsonObject, *names: str) -> int | None:
    # Tables with empty cells write integers as 1200.0.
    text = str(first_of(row, *names)).replace(",", "").removesuffix(".0")
    return int(text) if text.isdecimal() and len(text) < 10 else None
