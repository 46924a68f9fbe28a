"""The OpenAPI document describes the routes."""

import re
from pathlib import Path

import httpx
from starlette.routing import Mount

from kvproxy.apis import APIS
from kvproxy.http import routes
from kvproxy.http.admin.app import ROUTES as ADMIN_ROUTES
from kvproxy.http.openapi import document
from kvproxy.http.services import Services

ROOT = Path(routes.__file__).parent
FILTERS = ["namespace", "key", "model", "tag", "prompt", "search", "tenant", "older_than"]
# Parameters of routes before FastAPI described them: clients may send each.
DECLARED = {
    "get /admin/log": ["layer", "reason", "tenant", "model", "since", "until", "after", "judged", "before", "limit"],
    "get /admin/log/live": ["layer", "reason", "tenant", "model", "since", "until", "after", "judged"],
    "get /admin/log/series": ["since", "until", "step", "by"],
    "get /admin/log/{id}": ["id"],
    "get /admin/savings": ["by", "since"],
    "get /admin/cache": [*FILTERS, "limit", "offset"],
    "delete /admin/cache": [*FILTERS, "all", "soft"],
    "get /admin/cache/queue": ["limit", "offset"],
    "get /admin/cache/usage": ["by"],
    "get /admin/cache/{id}": ["id"],
    "delete /admin/cache/{id}": ["id", "soft"],
    "get /admin/savings/ledger": ["since"],
    "get /admin/spending": ["by", "since"],
    "get /admin/blocks/what-if": ["tier", "bytes_per_token"],
    "get /admin/blocks/tree": ["parent", "limit", "offset"],
    "post /admin/blocks/pins": ["name", "ttl", "api"],
    "delete /admin/blocks/pins/{name}": ["name"],
    "delete /admin/blocks/tiers/{name}": ["name"],
    "get /admin/blocks/{id}": ["id"],
    "post /admin/upstreams/drain": ["name"],
    "post /admin/upstreams/undrain": ["name"],
    "post /admin/explain": ["api"],
    "get /admin/sessions": ["since", "turns", "limit", "offset"],
    "get /admin/sessions/{id}": ["id"],
}
WHOLE = document([*routes.ROUTES, Mount("/admin", routes=ADMIN_ROUTES)])


def test_every_route_has_a_summary() -> None:
    summaries = {
        (path, method): each["summary"] for path, found in WHOLE["paths"].items() for method, each in found.items()
    }
    assert {api.path for api in APIS.values()} | {"/health", "/admin/cache/{id}/pin"} <= set(WHOLE["paths"])
    assert [key for key, summary in summaries.items() if not re.fullmatch(r"[A-Z].*\.", summary)] == []


def test_every_parameter_of_a_query_is_in_the_document() -> None:
    reads = r'query(?:_params)?(?:\.get\(|\[)"(\w+)"'
    read = {name for file in ROOT.rglob("*.py") for name in re.findall(reads, file.read_text())}
    assert read == set()
    declared = {(key, name) for key, names in DECLARED.items() for name in names}
    written = {
        (f"{method} {path}", each["name"])
        for path, methods in WHOLE["paths"].items()
        for method, entry in methods.items()
        for each in entry["parameters"]
    }
    assert declared <= written


def test_it_is_served(demo: tuple[str, Services]) -> None:
    assert httpx.get(f"{demo[0]}/openapi.json").json() == WHOLE


def test_bodies_are_described() -> None:
    verdict = WHOLE["paths"]["/admin/cache/{id}/feedback"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert verdict["required"] == ["right"]
    assert verdict["properties"]["right"]["type"] == "boolean"
    assert "application/jsonl" in WHOLE["paths"]["/admin/cache/import"]["post"]["requestBody"]["content"]
    assert WHOLE["paths"]["/admin/blocks/pins"]["post"]["requestBody"]["required"]
