"""One typed function per operation of an operator; the route, OpenAPI, and the client are derived from it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_type_hints

from kvproxy.parameters import DeclaredParameter, declared_parameters

Access = TypeVar("Access")
Parameters = TypeVar("Parameters")
Result = TypeVar("Result")
Method = Literal["GET", "POST", "DELETE"]


@dataclass(frozen=True, slots=True)
class NoParameters:
    """The parameters of an operation without any."""


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
class Operation(Generic[Access, Parameters, Result]):
    """An operation and its route.

    Attributes:
        path: path below `/admin`; a name in braces is a parameter.
        run: performs the operation. Its first argument gives access to the data, and its second has the parameters.
        parameters: a dataclass, see `kvproxy.parameters`.
        result: type of the result, which is the JSON of the response.
        rows: limits of the parameter `limit` in the route; None without limits.
    """

    method: Method
    path: str
    run: Callable[[Access, Parameters], Result]
    parameters: type[Parameters]
    result: Any
    rows: RowLimits | None = None

    def __call__(self, access: Access, parameters: Parameters) -> Result:
        return self.run(access, parameters)

    @property
    def path_names(self) -> list[str]:
        return re.findall(r"{(\w+)", self.path)

    @property
    def remote_parameters(self) -> Iterator[DeclaredParameter]:
        """The parameters that the route accepts."""
        return (each for each in declared_parameters(self.parameters) if each.metadata.is_remote)


AnyOperation: TypeAlias = Operation[Any, Any, Any]


def operation(
    method: Method, path: str, *, rows: RowLimits | None = None
) -> Callable[[Callable[[Access, Parameters], Result]], Operation[Access, Parameters, Result]]:
    """Declare that a function is the operation of a route. Its docstring describes the route."""

    def declare(run: Callable[[Access, Parameters], Result]) -> Operation[Access, Parameters, Result]:
        hints = get_type_hints(run)
        result = hints.pop("return")
        _, parameters = hints.values()
        return Operation(method, path, run, parameters, result, rows)

    return declare
