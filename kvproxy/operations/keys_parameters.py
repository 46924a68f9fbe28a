"""Declares the parameters of the operations on clients and their API keys."""

from dataclasses import dataclass
from typing import Annotated

from kvproxy.operations.parameters import Parameter, argument, declared_parameters, duration, size

_BYTES = "Size of its stored responses; excess is evicted."


@dataclass(frozen=True)
class ClientName:
    name: Annotated[str, argument("Name of the client.")]


@dataclass(frozen=True, kw_only=True)
class ClientLimits:
    """The limits of a client, as in `ClientSettings`; None is no limit."""

    requests_per_minute: Annotated[int | None, Parameter("Requests per minute; excess receives 429.", least=1)] = None
    tokens_per_minute: Annotated[int | None, Parameter("Computed tokens per minute; excess gets 429.", least=1)] = None
    concurrent_requests: Annotated[int | None, Parameter("Requests in flight; excess receives 429.", least=1)] = None
    stored_bytes: Annotated[int | None, size(_BYTES)] = None

    @property
    def limits(self) -> dict[str, int | None]:
        """The limits by name."""
        return {name: getattr(self, name) for name in LIMITS}


LIMITS = tuple(each.name for each in declared_parameters(ClientLimits))


@dataclass(frozen=True)
class NewClient(ClientLimits, ClientName):
    """A client to create."""


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
        str | None, Parameter("Limits to remove, such as tokens_per_minute.", _parse_limits, "LIMITS")
    ] = None


@dataclass(frozen=True)
class KeyRotation(ClientName):
    grace: Annotated[float, duration("Time while the old key stays valid.", "1d")] = 86_400.0
