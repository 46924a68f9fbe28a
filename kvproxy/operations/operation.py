"""One typed function per operation of an operator; the route, OpenAPI, and the client are derived from it."""

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args, get_origin

from kvproxy.operations.parameters import DeclaredParameter, declared_parameters

if TYPE_CHECKING:
    from kvproxy.apis.api_request import ApiRequest

Access = TypeVar("Access", contravariant=True)
Parameters = TypeVar("Parameters")
Result = TypeVar("Result", covariant=True)
Row = TypeVar("Row")
Method = Literal["GET", "POST", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True)
class NoParameters:
    """The parameters of an operation without any."""


class CsvFile(bytes):
    """The body of an operation that is a CSV file."""


@dataclass(frozen=True, slots=True)
class CountedRows(Generic[Row]):
    """A page of rows, and the number of all rows, which the route returns in the header `x-total-count`."""

    rows: list[Row]
    total: int


@dataclass(frozen=True, slots=True)
class RowLimits:
    """The number of rows in a response: `default` without a limit, and at most `most`, which 0 selects."""

    default: int
    most: int

    def apply(self, parameters: Parameters) -> Parameters:
        """Return the parameters with a bounded `limit`."""
        limit: int | None = getattr(parameters, "limit")  # noqa: B009
        limit = self.default if limit is None else min(self.most, limit or self.most)
        return replace(parameters, limit=limit)  # type: ignore[type-var]


@dataclass(frozen=True)
class DeclaredOperation(Generic[Parameters, Result]):
    """An operation and its route.

    Attributes:
        path: path below `/admin`; a name in braces is a parameter.
        run: performs the operation. Its first argument gives access to the data, the second has the parameters, and the
            third, if there is one, is the body of the request. Its docstring describes the route.
        parameters: a dataclass, see `kvproxy.parameters`.
        body: type of the third argument; None without a body.
        result: type of the result, which is the JSON of the response.
        rows: limits of the parameter `limit` in the route; None without limits.
    """

    method: Method
    path: str
    run: Callable[..., Any]
    parameters: type[Parameters]
    body: Any
    result: Any
    rows: RowLimits | None = None

    @property
    def path_names(self) -> list[str]:
        return re.findall(r"{(\w+)", self.path)

    @property
    def remote_parameters(self) -> Iterator[DeclaredParameter]:
        """The parameters that the route accepts."""
        return (parameter for parameter in declared_parameters(self.parameters) if parameter.metadata.is_remote)

    @cached_property
    def is_counted(self) -> bool:
        """Whether the result is a `CountedRows`."""
        return get_origin(self.result) is CountedRows

    @property
    def row_fields(self) -> list[str]:
        """Names of the fields of each row, if the result is a list of dataclasses."""
        return field_names(get_args(self.json_type)[0])

    @property
    def json_type(self) -> Any:
        """Type of the JSON of the response."""
        return list[get_args(self.result)[0]] if self.is_counted else self.result  # type: ignore[misc]


class Operation(DeclaredOperation[Parameters, Result], Generic[Access, Parameters, Result]):
    """An operation that reads files or a database."""

    def __call__(self, access: Access, parameters: Parameters, *body: object) -> Result:
        result: Result = self.run(access, parameters, *body)
        return result


class AsyncOperation(DeclaredOperation[Parameters, Result], Generic[Access, Parameters, Result]):
    """An operation on the parts of a running proxy."""

    async def __call__(self, access: Access, parameters: Parameters, *body: object) -> Result:
        result: Result = await self.run(access, parameters, *body)
        return result


class RequestReader(Protocol):
    """Reads the body of an operation's request, which is a request in the format of an API."""

    def __call__(self, api: str) -> "Awaitable[ApiRequest]": ...

    def refusal(self, model: str) -> str | None:
        """Return why the proxy would refuse a request of this client to a model; None if the client may send it."""


OperationOn: TypeAlias = Operation[Access, Any, Any]
AsyncOperationOn: TypeAlias = AsyncOperation[Access, Any, Any]
AnyOperation: TypeAlias = DeclaredOperation[Any, Any]
Function: TypeAlias = Callable[Concatenate[Access, Parameters, ...], Result]
AsyncFunction: TypeAlias = Callable[Concatenate[Access, Parameters, ...], Awaitable[Result]]


def operation(
    method: Method, path: str, *, rows: RowLimits | None = None
) -> Callable[[Function[Access, Parameters, Result]], Operation[Access, Parameters, Result]]:
    """Declare that a function is the operation of a route."""
    return lambda run: Operation(method, path, run, *_signature(run), rows)


def async_operation(
    method: Method, path: str, *, rows: RowLimits | None = None
) -> Callable[[AsyncFunction[Access, Parameters, Result]], AsyncOperation[Access, Parameters, Result]]:
    """Declare that a coroutine function is the operation of a route."""
    return lambda run: AsyncOperation(method, path, run, *_signature(run), rows)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name; unlike `dataclasses.asdict`, copy no values."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def field_names(row: Any) -> list[str]:
    """Return the names of the fields of a dataclass, given its type."""
    return [field.name for field in fields(row)]


def _signature(run: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """Return the types of the parameters, the body, and the result. The type of the access may be a string."""
    _, parameters, *body, result = run.__annotations__.values()
    return parameters, (body[0] if body else None), result
