"""Declares parameters of operations once: routes, OpenAPI, the client, and options of commands are derived from them.

A parameter is a field of a dataclass: `model: Annotated[str | None, Parameter("Only requests for this model.")] = None`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeAlias, get_args, get_origin

from kvproxy.errors import InvalidRequest
from kvproxy.units import parse_bytes, parse_seconds, parse_since, parse_time

_MAX_NUMBER = 2.0**31
Suggestions: TypeAlias = Callable[[Path | None], Iterable[str] | Iterable[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """Describes a field of a dataclass of parameters.

    Attributes:
        help: one sentence for people.
        parse: converts text; raises ValueError or InvalidRequest. None converts to the type of the field.
        metavar: name of the value in the help of a command; None derives it from the type.
        least: minimum of a number.
        default_text: the default value in the help of a command; None shows the value.
        is_argument: commands have an argument for it, not an option.
        is_option: commands have an option or an argument for it.
        is_remote: the route accepts it; otherwise only commands with access to the files have it.
        is_list: its value has several names, separated by commas, so commands refuse it if it is given twice.
        also: a second name of the option, such as `--client`.
        needs_unit: commands refuse a duration without a unit, which may mean minutes or days. Routes accept seconds.
        suggestions: lists values for the completion of a command line, which may have descriptions; its argument is the data
            folder, None the default.
    """

    help: str
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    least: int = 0
    default_text: str | None = None
    is_argument: bool = False
    is_option: bool = True
    is_remote: bool = True
    is_list: bool = False
    also: str | None = None
    needs_unit: bool = False
    suggestions: Suggestions | None = None


@dataclass(frozen=True, slots=True)
class Filter(Parameter):
    """A parameter that selects rows. Commands refuse it if it is given twice, because only the last value would count."""


@dataclass(frozen=True, slots=True)
class DeclaredParameter:
    """A parameter with the name, the type without None, and the default value of its field."""

    name: str
    type: Any
    default: Any
    metadata: Parameter

    def parse(self, text: str) -> Any:
        """Convert text from a query or a command line. Raises ValueError or InvalidRequest."""
        if self.metadata.parse is not None:
            return self.metadata.parse(text)
        if get_origin(self.type) is Literal:
            return _parse_choice(text, get_args(self.type))
        if self.type is bool:
            return text == "true"
        if self.type in (int, float):
            return self.type(_parse_number(text, self.metadata.least))
        return text

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    @property
    def schema(self) -> dict[str, Any]:
        """Its JSON schema in a query."""
        if get_origin(self.type) is Literal:
            return {"type": "string", "enum": list(get_args(self.type))}
        if self.metadata.parse is None and self.type in (int, float):
            return {"type": "number", "minimum": self.metadata.least}
        return {"type": "boolean" if self.type is bool else "string"}


def duration(help: str, default_text: str | None = None, *, needs_unit: bool = False) -> Parameter:
    """Describe a duration such as `90s` or `7d`; its value is in seconds."""
    return Parameter(help, parse_seconds, "DURATION", default_text=default_text, needs_unit=needs_unit)


def size(help: str, default_text: str | None = None) -> Parameter:
    """Describe a size such as `2GiB`; its value is in bytes."""
    return Parameter(help, parse_bytes, "SIZE", default_text=default_text)


def argument(help: str, suggestions: Suggestions | None = None) -> Parameter:
    """Describe a text that is an argument of commands."""
    return Parameter(help, is_argument=True, suggestions=suggestions)


def period_start(help: str, default_text: str | None = None) -> Filter:
    """Describe the start of a period: a duration before its end, or a time. See `units.parse_since`."""
    return Filter(help, parse_since, "TIME", default_text=default_text, needs_unit=True)


def period_end(help: str) -> Filter:
    """Describe the end of a period, in seconds since the epoch. See `units.parse_time`."""
    return Filter(help, parse_time, "TIME", needs_unit=True)


def check_id(id: str) -> None:
    """Raise InvalidRequest for a blank id, such as an empty variable of a script: every id begins with it."""
    if not id.strip():
        raise InvalidRequest("id is empty: give one", param="id")


def declared_parameters(kind: type[Any]) -> Iterator[DeclaredParameter]:
    """Yield the parameters of a dataclass, and no other fields."""
    for field in fields(kind):
        for metadata in getattr(field.type, "__metadata__", ()):
            if isinstance(metadata, Parameter):
                declared = get_args(field.type)[0]
                types = [member for member in get_args(declared) if member is not NoneType]
                is_optional = get_origin(declared) is not Literal and NoneType in get_args(declared)
                yield DeclaredParameter(field.name, types[0] if is_optional else declared, field.default, metadata)


def _parse_number(text: str, least: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= _MAX_NUMBER:
        raise ValueError(f"must be a number of at least {least}, not {text[:40]!r}")
    return value


def _parse_choice(text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise ValueError(f"is one of {', '.join(choices)}, not {text[:40]!r}")
    return text
