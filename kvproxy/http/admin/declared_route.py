"""Routes of declared operations, and what OpenAPI says about them."""

from collections.abc import Sequence

from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.routing import BaseRoute

from kvproxy.operations.operation import CsvFile, RequestReader
from kvproxy.operations.parameters import DeclaredParameter


class DeclaredRoute(APIRoute):
    """A route with declared parameters.

    The schemas of results and bodies take a third of a proxy's imports, so they are made when OpenAPI is asked for.
    """

    parameters: Sequence[DeclaredParameter] = ()
    result: object = None
    body: type | None = None

    def described(self) -> APIRoute:
        """Return a route for FastAPI's OpenAPI entry, with the schemas of result and body."""
        methods = sorted((self.methods or set()) - {"HEAD"})
        extra = None
        if self.body is not None:
            extra = {"requestBody": {"required": True, "content": _body_schema(self.body)}}
        return APIRoute(self.path, self.endpoint, methods=methods, response_model=self.result, openapi_extra=extra)


def parameter_names(routes: Sequence[BaseRoute]) -> frozenset[str]:
    return frozenset(
        parameter.name for route in routes if isinstance(route, DeclaredRoute) for parameter in route.parameters
    )


def _body_schema(kind: type) -> dict[str, object]:
    """Return the content of the body in OpenAPI."""
    if kind is bytes:
        return {"application/jsonl": {"schema": {"type": "string"}}}
    if kind is CsvFile:
        return {"text/csv": {"schema": {"type": "string"}}}
    if kind is RequestReader:
        return {"application/json": {"schema": {"type": "object"}}}
    return {"application/json": {"schema": TypeAdapter(kind).json_schema()}}
