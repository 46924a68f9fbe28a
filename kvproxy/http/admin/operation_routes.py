"""Routes of declared operations: FastAPI derives the parsing of queries and the OpenAPI entry from the declaration."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Path, Query
from fastapi.routing import APIRoute
from pydantic import PlainValidator, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from kvproxy.errors import InvalidRequest
from kvproxy.http.admin.replies import reply
from kvproxy.operations.operation import AnyOperation, Method
from kvproxy.parameters import DeclaredParameter, declared_parameters

Parameters = TypeVar("Parameters")
Access = TypeVar("Access")
Perform = Callable[[Request, Callable[[Access], object]], Awaitable[object]]
"""Calls a function with access to the data of the proxy that received the request."""


class DeclaredRoute(APIRoute):
    """A route with declared parameters."""

    parameters: Sequence[DeclaredParameter] = ()


def operation_route(operation: AnyOperation, perform: Perform[Access]) -> DeclaredRoute:
    async def respond(request: Request, parameters: object) -> Response:
        if operation.rows is not None:
            parameters = operation.rows.apply(parameters)
        return reply(await perform(request, lambda access: operation(access, parameters)))

    respond.__doc__ = operation.run.__doc__
    respond.__name__ = operation.run.__name__
    return declared_route(operation.method, operation.path, operation.parameters, respond, operation.result)


def declared_route(
    method: Method,
    path: str,
    parameters: type[Parameters],
    respond: Callable[[Request, Parameters], Awaitable[Response]],
    result: object = None,
) -> DeclaredRoute:
    """Return a route whose path and query have the fields of `parameters`; `result` is the type of its JSON."""
    declared = [each for each in declared_parameters(parameters) if each.metadata.is_remote]

    async def endpoint(request: Request, **values: object) -> Response:
        given = {name: value for name, value in values.items() if value is not None}
        return await respond(request, parameters(**given))

    accepted = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, annotation=_annotation(each))
        if "{" + each.name + "}" in path
        else inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(each, Query)
        )
        for each in declared
    ]
    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    endpoint.__signature__ = inspect.Signature([first, *accepted])  # type: ignore[attr-defined]
    endpoint.__doc__, endpoint.__name__ = respond.__doc__, respond.__name__
    # As Starlette's routes do.
    methods = {method, "HEAD"} if method == "GET" else {method}
    route = DeclaredRoute(path, endpoint, methods=set[str](methods), response_model=result)
    route.parameters = declared
    return route


def _annotation(declared: DeclaredParameter, place: Callable[..., object] = Path) -> object:
    def parse(value: object) -> object:
        if not isinstance(value, str) or not value:
            return None
        try:
            return declared.parse(value)
        except ValueError as error:
            raise InvalidRequest(f"{declared.name}: {error}", param=declared.name) from None

    schema = WithJsonSchema(declared.schema)
    return Annotated[declared.type, place(description=declared.metadata.help), PlainValidator(parse), schema]
