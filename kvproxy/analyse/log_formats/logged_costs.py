"""Reads the money that the sender of a log counted for a request."""

from collections.abc import Sequence

from kvproxy.analyse.log_formats.amounts import read_amount
from kvproxy.analyse.log_formats.json_texts import decoded
from kvproxy.apis.json import Json, JsonMap, field


def logged_cost(row: JsonMap, paths: Sequence[str], response: Json) -> float | None:
    """Return the money in US dollars that a row states, or that the usage of its response states; None without it.

    `paths` are the fields of the format, such as `costDetails.total`. An amount of 0 is none, because gateways log 0 for models
    without a price.
    """
    amounts = (read_amount(_at_path(row, path)) for path in paths)
    # OpenRouter states it in the usage.
    reported = read_amount(field(field(response, "usage"), "cost"))
    return next((amount for amount in (*amounts, reported) if amount), None)


def _at_path(row: JsonMap, path: str) -> Json:
    value: Json = dict(row)
    for name in path.split("."):
        value = field(decoded(value), name)
    return value
