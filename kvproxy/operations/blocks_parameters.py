"""Declares the parameters of the operations on the prefix cache."""

from dataclasses import dataclass
from typing import Annotated

from kvproxy.apis.api import ApiName
from kvproxy.operations.parameters import Parameter, argument, check_id, duration, size

_TOKEN_BYTES = "KV bytes per token, for a tier of an upstream."


@dataclass(frozen=True, slots=True)
class BlockName:
    id: Annotated[str, argument("Number of a block, or the first digits of its hash.")]

    def __post_init__(self) -> None:
        check_id(self.id)


@dataclass(frozen=True, slots=True)
class BranchPage:
    parent: Annotated[str | None, Parameter("Hash of the block before the branches.", is_option=False)] = None
    limit: Annotated[int, Parameter("Maximum number of branches.", is_option=False)] = 50
    offset: Annotated[int, Parameter("Number of branches to skip.", is_option=False)] = 0


@dataclass(frozen=True, slots=True)
class ForecastQuery:
    tier: Annotated[int, size("Size of a tier in host memory.", "64GiB")] = 64 * 2**30
    bytes_per_token: Annotated[int | None, Parameter(_TOKEN_BYTES, least=1)] = None


@dataclass(frozen=True, slots=True)
class PinName:
    name: Annotated[str, argument("Name of the pin.")]


@dataclass(frozen=True, slots=True)
class NewPin(PinName):
    ttl: Annotated[float | None, duration("Lifetime of the pin, such as 1h.", "until unpin")] = None
    api: Annotated[ApiName, Parameter("API of the request in the body.", is_option=False)] = "chat"


@dataclass(frozen=True, slots=True)
class TierName:
    name: Annotated[str, argument("The tier: host, disk or redis.")]
