"""Declares the parameters of the operations on clients and their API keys."""

import math
import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from kvproxy.operations.parameters import Parameter, argument, declared_parameters, duration, period_start, size
from kvproxy.operations.suggestions import client_names
from kvproxy.units import parse_since, require_unit

_NO_MODEL = re.compile(r"[;|\s]")
"""Characters that separate names, and that no name of a model has."""
_BYTES = "Size of its stored responses; excess is evicted."


def _parse_models(text: str) -> str:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("names no model")
    for name in names:
        if invalid := _NO_MODEL.search(name):
            raise ValueError(f"{name[:40]!r} has {invalid[0]!r}, which no model has: separate models by commas")
    return ",".join(names)


def _parse_expiry(text: str) -> float:
    """Parse a duration from now, or a time; a large number is in seconds since the epoch."""
    require_unit(text)
    moment = parse_since(text)
    expiry = moment.timestamp() if isinstance(moment, datetime) else time.time() + moment
    if expiry <= time.time():
        raise ValueError(f"{text[:40]!r} is in the past: give a duration from now such as 90d, or a later date")
    return expiry


def _parse_budget(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise ValueError(f"must be an amount in journal.currency such as 5 or 0.50, not {text[:40]!r}")
    return amount


def _budget(help: str) -> Parameter:
    return Parameter(help, _parse_budget, "AMOUNT")


@dataclass(frozen=True)
class ClientName:
    name: Annotated[str, argument("Name of the client.", client_names)]


@dataclass(frozen=True, kw_only=True)
class ClientLimits:
    """The limits of a client, as in `ClientSettings`; None is no limit."""

    requests_per_minute: Annotated[int | None, Parameter("Requests per minute; excess receives 429.", least=1)] = None
    tokens_per_minute: Annotated[
        int | None, Parameter("Prompt and response tokens per minute; excess gets 429.", least=1)
    ] = None
    concurrent_requests: Annotated[int | None, Parameter("Requests in flight; excess receives 429.", least=1)] = None
    budget_per_day: Annotated[float | None, _budget("Money per UTC day; excess receives 429.")] = None
    budget_per_month: Annotated[float | None, _budget("Money per UTC month; excess receives 429.")] = None
    team: Annotated[
        str | None,
        Parameter("Client whose quotas and budgets it shares with others.", metavar="NAME", suggestions=client_names),
    ] = None
    stored_bytes: Annotated[int | None, size(_BYTES)] = None
    models: Annotated[
        str | None,
        Parameter(
            "Models that it may use, separated by commas; * matches any text.", _parse_models, "MODELS", is_list=True
        ),
    ] = None
    expires: Annotated[
        float | None,
        Parameter(
            "When its key expires: a duration from now such as 90d, or a date.", _parse_expiry, "TIME", needs_unit=True
        ),
    ] = None

    @property
    def limits(self) -> dict[str, Any]:
        """The limits by name, as fields of `ClientSettings`."""
        given = {name: getattr(self, name) for name in LIMITS}
        return given | {"models": None if self.models is None else tuple(self.models.split(","))}


LIMITS = tuple(parameter.name for parameter in declared_parameters(ClientLimits))


@dataclass(frozen=True)
class NewClient(ClientLimits, ClientName):
    """A client to create."""

    name: Annotated[str, argument("Name of the client.")]


@dataclass(frozen=True, kw_only=True)
class ClientUsageQuery:
    since: Annotated[
        float | datetime | None, period_start("Usage of whole UTC days since then: 7d, 2026-11-28, today.", "30d")
    ] = 30 * 86_400.0


def _parse_limits(text: str) -> str:
    names = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    if not names or (unknown := next((name for name in names if name not in LIMITS), None)) is not None:
        raise ValueError(
            f"{unknown or ''!r} is no limit: use some of {', '.join(LIMITS)}" if names else "names no limit"
        )
    return ",".join(names)


@dataclass(frozen=True, kw_only=True)
class ClientChange(ClientLimits, ClientName):
    """New limits of a client; None keeps a limit, and `unlimited` names those to remove."""

    unlimited: Annotated[
        str | None, Parameter("Limits to remove, separated by commas.", _parse_limits, "LIMITS", is_list=True)
    ] = None


@dataclass(frozen=True)
class KeyRotation(ClientName):
    grace: Annotated[float, duration("Time while the old key stays valid.", "1d", needs_unit=True)] = 86_400.0


@dataclass(frozen=True)
class ChangesPage:
    limit: Annotated[int | None, Parameter("Maximum number of changes; 0 lists all.", is_option=False)] = None
