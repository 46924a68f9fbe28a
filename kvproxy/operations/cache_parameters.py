"""Declares the parameters of the operations on stored responses."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from kvproxy.operations.parameters import Filter, Parameter, argument, check_id, declared_parameters
from kvproxy.operations.suggestions import models, response_ids, tags, tenants
from kvproxy.units import parse_seconds

UsageGroup = Literal["tenant", "model", "endpoint", "tag"]
_TENANT = "Only responses of this tenant, or of the client with this name."
_SOFT = "Expire instead of removing; stale serving still applies."


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryQuery:
    """Filters of stored responses, as `index.store.EntryFilter`; None disables a filter. `older_than` is in seconds."""

    namespace: Annotated[
        str | None, Filter("Only this namespace: its name in the library, or the first digits of its digest.")
    ] = None
    model: Annotated[str | None, Filter("Only responses of this model.", suggestions=models)] = None
    search: Annotated[str | None, Filter("Only prompts that contain this text.")] = None
    key: Annotated[str | None, Filter("Only this exact key; its first digits suffice.")] = None
    prompt: Annotated[str | None, Filter("Only prompts that begin with this text, a prefix.")] = None
    tag: Annotated[str | None, Filter("Only responses with this tag.", suggestions=tags)] = None
    older_than: Annotated[
        float | None, Filter("Only responses older than this, such as 7d.", parse_seconds, "DURATION", needs_unit=True)
    ] = None
    tenant: Annotated[str | None, Filter(_TENANT, suggestions=tenants)] = None

    @property
    def filters(self) -> dict[str, Any]:
        """The enabled filters by name."""
        values = {parameter.name: getattr(self, parameter.name) for parameter in declared_parameters(EntryQuery)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPage(EntryQuery):
    limit: Annotated[int, Parameter("Maximum number of rows; 0 lists all.", is_option=False)] = 100
    offset: Annotated[int, Parameter("Number of rows to skip.", is_option=False)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRemoval(EntryQuery):
    all: Annotated[bool, Parameter("Remove all responses.")] = False
    soft: Annotated[bool, Parameter(_SOFT)] = False


@dataclass(frozen=True, slots=True)
class EntryName:
    id: Annotated[str, argument("Id of the response, or its first digits.", response_ids)]

    def __post_init__(self) -> None:
        check_id(self.id)


@dataclass(frozen=True, slots=True)
class NamedRemoval(EntryName):
    soft: Annotated[bool, Parameter(_SOFT)] = False


@dataclass(frozen=True, slots=True)
class QueuePage:
    limit: Annotated[int, Parameter("Maximum number of rows.", is_option=False)] = 20
    offset: Annotated[int, Parameter("Number of rows to skip.", is_option=False)] = 0


@dataclass(frozen=True, slots=True)
class UsageQuery:
    by: Annotated[UsageGroup, Parameter("Group by this field.")] = "tenant"
