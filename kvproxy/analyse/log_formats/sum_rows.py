"""Finds the rows of a table of usage that are the sum of the rows above, in any language."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvproxy.analyse.log_formats.log_format import LoggedRequest


@dataclass(slots=True)
class _Sum:
    """The tokens of rows."""

    rows: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, prompt_tokens: int, completion_tokens: int) -> None:
        self.rows += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens

    def equals(self, prompt_tokens: int, completion_tokens: int, least_rows: int) -> bool:
        tokens = self.prompt_tokens, self.completion_tokens
        return self.rows >= least_rows and tokens == (prompt_tokens, completion_tokens) != (0, 0)


def sum_rows(requests: Iterable[LoggedRequest]) -> set[int]:
    """Return the line numbers of totals and subtotals.

    Such a row lacks the model or the date, which each row above has, and has the tokens of all these rows, or of those after
    the previous subtotal. If it has one of them, it is the sum of two rows or more.
    """
    found = set[int]()
    total, part = _Sum(), _Sum()
    is_dated = names_models = True
    for request in requests:
        prompt, completion = (
            (0, 0) if (usage := request.summed) is None else (usage.prompt_tokens or 0, usage.completion_tokens or 0)
        )
        lacks_model, lacks_date = names_models and not request.names_model, is_dated and request.time is None
        least_rows = 1 if lacks_model and request.time is None else 2
        if (lacks_model or lacks_date) and any(rows.equals(prompt, completion, least_rows) for rows in (total, part)):
            found.add(request.line)
            part = _Sum()
            continue
        is_dated, names_models = is_dated and request.time is not None, names_models and request.names_model
        total.add(prompt, completion)
        part.add(prompt, completion)
    return found
