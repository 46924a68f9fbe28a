"""The base class of all sections, and types that several sections use."""

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from kvproxy.index.doors import Door
from kvproxy.units import parse_bytes, parse_seconds

Seconds = Annotated[float, BeforeValidator(parse_seconds)]
"""A duration in seconds, or text such as `7d`."""
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
"""A size in bytes, or text such as `2GiB`."""

if TYPE_CHECKING:
    Value = TypeVar("Value")
    Text = TypeVar("Text")

    class ParsedSetting(Generic[Value, Text]):
        """Tells type checkers that a constructor accepts a value or a text, and that the attribute is the value."""

        def __get__(self, section: object, owner: object = None) -> Value: ...
        def __set__(self, section: object, value: Value | Text) -> None: ...

    Duration = ParsedSetting[float, str | timedelta]
    OptionalDuration = ParsedSetting[float | None, str | timedelta]
    Size = ParsedSetting[int, str]
    OptionalSize = ParsedSetting[int | None, str]
else:
    Duration, OptionalDuration, Size, OptionalSize = Seconds, Seconds | None, Bytes, Bytes | None


def parsed_field(default: float | None, **constraints: Any) -> Any:
    """Declare a field of the type `Duration` or `Size`."""
    return Field(default=default, **constraints)


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
