"""Our own OpenAPI document says what the routes are."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from kvproxy.http import admin, routes
from kvproxy.http.admin.cache import _FILTERS
from kvproxy.http.openapi.document import document
from kvproxy.http.openapi.operations import OPERATIONS, Operation
from kvproxy.http.services import Services

ROOT = Path(routes.__file__).parent


def of_routes() -> Iterator[tuple[str, str]]:
    for prefix, group in (("", routes.ROUTES), ("/admin", admin.ROUTES)):
        for route in group:
            assert isinstance(route, Route)
            if route.path == "/{path:path}":
                continue
            assert route.methods is not None
            for method in route.methods - {"HEAD"}:
                yield method.lower(), prefix + route.path


def test_every_route_is_in_the_document_and_nothing_else() -> None:
    assert sorted((each.method, each.path) for each in OPERATIONS) == sorted(of_routes())


def test_every_parameter_of_a_query_is_in_the_document() -> None:
    read = {
        name for file in ROOT.rglob("*.py") for name in re.findall(r'query(?:_params)?\.get\("(\w+)"', file.read_text())
    }
    assert {"limit", "leaf", "api", "models"} <= read
    assert {name for each in OPERATIONS for name in each.query} == read | set(_FILTERS)


def test_references_lead_somewhere() -> None:
    whole = document()
    names = set(re.findall(r"#/components/schemas/(\w+)", str(whole)))
    assert names == set(whole["components"]["schemas"])


def test_it_is_served(demo: tuple[str, Services]) -> None:
    served = httpx.get(f"{demo[0]}/openapi.json").json()
    assert served == document()
    assert served["openapi"] == "3.1.0"


@pytest.mark.parametrize("each", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_needed_parameters_are_parameters(each: Operation) -> None:
    assert set(each.needed) <= set(each.query)
