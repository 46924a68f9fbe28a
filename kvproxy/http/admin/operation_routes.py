"""Routes of declared operations: FastAPI derives the parsing of queries and the OpenAPI entry from the declaration."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import fields
from typing import Annotated, TypeVar

from fastapi import Path, Query
from pydantic import PlainValidator, TypeAdapter, ValidationError, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from kvproxy.apis.api_request import ApiRequest
from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.http.admin.declared_route import DeclaredRoute
from kvproxy.http.admin.replies import read_request, reply
from kvproxy.http.allowed_models import check_model
from kvproxy.http.exchange_middleware import exchange_of
from kvproxy.http.request_bodies import read_body
from kvproxy.http.services import services
from kvproxy.operations.operation import (
    AnyOperation,
    AsyncOperationOn,
    CountedRows,
    CsvFile,
    Method,
    OperationOn,
    RequestReader,
)
from kvproxy.operations.parameters import DeclaredParameter, declared_parameters

Parameters = TypeVar("Parameters")
Access = TypeVar("Access")
Perform = Callable[[Request, Callable[[Access], object]], Awaitable[object]]
"""Calls a function with access to the data of the proxy that received the request."""


def operation_route(operation: OperationOn[Access], perform: Perform[Access]) -> DeclaredRoute:
    """Return the route of an operation that `perform` calls, usually on another thread."""

    async def respond(request: Request, parameters: object) -> Response:
        if operation.rows is not None:
            parameters = operation.rows.apply(parameters)
        body = [] if operation.body is None else [await _read(request, operation.body)]
        return _reply(await perform(request, lambda access: operation(access, parameters, *body)))

    return _route_of(operation, respond)


def async_operation_route(operation: AsyncOperationOn[Access], access: Callable[[Request], Access]) -> DeclaredRoute:
    """Return the route of an operation on the parts of the proxy to which `access` gives access."""

    async def respond(request: Request, parameters: object) -> Response:
        body = [] if operation.body is None else [await _read(request, operation.body)]
        result = await operation(access(request), parameters, *body)
        # The rows of a large pool would block the event loop.
        return await asyncio.to_thread(_reply, result)

    return _route_of(operation, respond)


def _route_of(operation: AnyOperation, respond: Callable[[Request, object], Awaitable[Response]]) -> DeclaredRoute:
    async def respond_without_body(request: Request, parameters: object) -> Response:
        if operation.method != "GET" and operation.body is None:
            _refuse_body(request, operation)
        return await respond(request, parameters)

    respond_without_body.__doc__ = operation.run.__doc__
    respond_without_body.__name__ = operation.run.__name__
    route = declared_route(
        operation.method, operation.path, operation.parameters, respond_without_body, operation.json_type
    )
    route.body = operation.body
    return route


def _refuse_body(request: Request, operation: AnyOperation) -> None:
    if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
        names = [each.name for each in operation.remote_parameters if each.name not in operation.path_names]
        raise InvalidRequest(f"this route takes no body: {_known_parameters(names)}")


def _check_query(request: Request, parameters: Mapping[str, DeclaredParameter]) -> None:
    """Refuse unknown parameters: a misspelt limit would create a key without a limit, or list all rows."""
    for name, value in request.query_params.multi_items():
        if name not in parameters:
            raise InvalidRequest(
                f"the parameter {name[:40]!r} is unknown: {_known_parameters(parameters)}", param=name[:40]
            )
        # A form of a page may send an empty filter.
        if not value and request.method not in ("GET", "HEAD") and not parameters[name].is_required:
            raise InvalidRequest(f"the parameter {name} is empty: give a value, or leave it out", param=name)


def _known_parameters(names: Collection[str]) -> str:
    return f"its parameters are {', '.join(names)}, in the query" if names else "it has no parameters"


def _reply(result: object) -> Response:
    if isinstance(result, CountedRows):
        return reply(result.rows, {"x-total-count": str(result.total)})
    return reply(result)


class _ClientRequest:
    """The `RequestReader` of an admin request, which has the credentials of a client."""

    def __init__(self, request: Request) -> None:
        self._request = request

    async def __call__(self, api: str) -> ApiRequest:
        return await read_request(self._request, api)

    def refusal(self, model: str) -> str | None:
        clients, client = services(self._request).clients, exchange_of(self._request.scope).client
        try:
            clients.check(client, self._request.headers)
            check_model(client, model)
        except KvproxyError as error:
            return error.message
        return None


async def _read(request: Request, kind: type) -> object:
    """Read the body: bytes, or JSON with the fields of a dataclass; a `RequestReader` reads it later."""
    if kind is RequestReader:
        return _ClientRequest(request)
    limits = services(request).settings.limits
    if kind in (bytes, CsvFile):
        return await read_body(request, limits.import_bytes)
    raw = await read_body(request, limits.body_bytes)
    try:
        return TypeAdapter(kind).validate_json(raw, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = f"the field {'.'.join(map(str, wrong['loc']))} of the body" if wrong["loc"] else "the body"
        names = ", ".join(field.name for field in fields(kind))
        raise InvalidRequest(f"{place}: {wrong['msg']}; the fields of the JSON body are {names}") from None


def declared_route(
    method: Method,
    path: str,
    parameters: type[Parameters],
    respond: Callable[[Request, Parameters], Awaitable[Response]],
    result: object = None,
) -> DeclaredRoute:
    """Return a route whose path and query have the fields of `parameters`; `result` is the type of its JSON."""
    declared = [parameter for parameter in declared_parameters(parameters) if parameter.metadata.is_remote]
    in_query = {each.name: each for each in declared if not re.search(rf"{{{each.name}\b", path)}

    async def endpoint(request: Request, **values: object) -> Response:
        _check_query(request, in_query)
        given = {name: value for name, value in values.items() if value is not None}
        return await respond(request, parameters(**given))

    accepted = [
        inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, annotation=_annotation(parameter))
        if parameter.name not in in_query
        else inspect.Parameter(
            parameter.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if parameter.is_required else None,
            annotation=_annotation(parameter, Query),
        )
        for parameter in declared
    ]
    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    endpoint.__signature__ = inspect.Signature([first, *accepted])  # type: ignore[attr-defined]
    endpoint.__doc__, endpoint.__name__ = respond.__doc__, respond.__name__
    # As Starlette's routes do.
    methods = {method, "HEAD"} if method == "GET" else {method}
    route = DeclaredRoute(path, endpoint, methods=set[str](methods), response_model=None)
    route.parameters, route.result = declared, result
    return route


def _annotation(declared: DeclaredParameter, place: Callable[..., object] = Path) -> object:
    def parse(value: object) -> object:
        if not isinstance(value, str) or (not value and not declared.is_required):
            return None
        try:
            return declared.parse(value)
        except ValueError as error:
            raise InvalidRequest(f"{declared.name}: {error}", param=declared.name) from None

    schema = WithJsonSchema(declared.schema)
    return Annotated[declared.type, place(description=declared.metadata.help), PlainValidator(parse), schema]
