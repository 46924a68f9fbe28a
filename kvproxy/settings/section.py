"""The base class of all sections, and types that several sections use."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from kvproxy.index.doors import Door
from kvproxy.units import parse_bytes, parse_seconds

Seconds = Annotated[float, BeforeValidator(parse_seconds)]
"""A duration in seconds, or text such as `7d`."""
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
"""A size in bytes, or text such as `2GiB`."""


def _parse_share_or_bytes(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return parse_bytes(value)


ShareOrBytes = Annotated[float, BeforeValidator(_parse_share_or_bytes)]
"""A fraction of a total (at most 1), or a size in bytes, as a number or as text such as `2GiB`."""


def compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression ({error}): correct it") from None


def part_of(door: Door[Any]) -> AfterValidator:
    """Return a validator of names of a door's parts."""
    return AfterValidator(door.check)


class Section(BaseModel):
    """Base class of a section; it rejects unknown settings, and numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
