"""The OpenAPI document describes the routes."""

import re
from pathlib import Path
from typing import Any

import httpx
from starlette.routing import Mount
from starlette.testclient import TestClient

from kvproxy.apis import APIS
from kvproxy.clients.client_keys import add_client
from kvproxy.http import routes
from kvproxy.http.admin.app import ROUTES as ADMIN_ROUTES
from kvproxy.http.app import create_app
from kvproxy.http.openapi import document
from kvproxy.http.services import Services, build_services
from kvproxy.settings import load_settings

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
    "get /admin/savings/advice": ["since"],
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
    "get /admin/sessions/{id}": ["id", "quotes"],
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


def test_the_operator_reads_it_without_a_key_and_it_names_who_may_call_each_route(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path, upstream="http://127.0.0.1:9", admin_token="t", cache={"semantic": False})
    key = add_client(settings, "one")
    with TestClient(create_app(build_services(settings)), base_url="http://127.0.0.1") as client:
        given = [{"x-kvproxy-admin-token": "t"}, {"authorization": "Bearer t"}, {"authorization": f"Bearer {key}"}]
        answers = [client.get("/openapi.json", headers=headers) for headers in [*given, {}, {"api-key": "t"}]]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 401, 401]
        found = answers[0].json()
        assert {name for each in _all_security(found) for name in each} == set(found["components"]["securitySchemes"])
        # The document describes each route without parameters correctly.
        for path, methods in found["paths"].items():
            if "get" in methods and "{" not in path and "live" not in path and path != "/v1/models":
                is_open = methods["get"]["security"] == []
                assert (client.get(path).status_code != 401) == is_open, path
        assert found["paths"]["/v1/chat/completions"]["post"]["security"] == [{"key": []}]


def _all_security(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for methods in found["paths"].values() for entry in methods.values() for each in entry["security"]]


def test_bodies_are_described() -> None:
    verdict = WHOLE["paths"]["/admin/cache/{id}/feedback"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert verdict["required"] == ["right"]
    assert verdict["properties"]["right"]["type"] == "boolean"
    assert "application/jsonl" in WHOLE["paths"]["/admin/cache/import"]["post"]["requestBody"]["content"]
    assert WHOLE["paths"]["/admin/blocks/pins"]["post"]["requestBody"]["required"]
