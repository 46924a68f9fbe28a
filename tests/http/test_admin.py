"""Admin routes: what they remove, refuse and take in. The commands' tests cover what they show."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.plain_upstream import WHOLE
from tests.servers import run_front, run_upstream

Pair = tuple[httpx.Client, list[str]]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A client of a proxy that holds three answers, and the paths that its upstream was asked for."""
    asked: list[str] = []

    async def answer(request: Request) -> Response:
        asked.append(request.url.path)
        return JSONResponse(WHOLE)

    with run_upstream(answer) as target, run_front(tmp_path, target) as (url, _), httpx.Client(base_url=url) as client:
        for model, question in [("m", "one"), ("m", "two"), ("other", "one")]:
            body = {"model": model, "messages": [{"role": "user", "content": question}]}
            assert client.post("/v1/chat/completions", json=body).status_code == 200
        asked.clear()
        yield client, asked


def entries(client: httpx.Client) -> int:
    return int(client.get("/admin/cache/stats").json()["entries"])


def test_entries_are_removed_by_model_or_all_and_only_if_clearly_asked_for(pair: Pair) -> None:
    client, _ = pair
    for query in ("", "?all=false", "?all=", "?older_than=abc", "?older_than=nan", "?older_than=-1"):
        answer = client.delete(f"/admin/cache{query}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert entries(client) == 3
    assert client.delete("/admin/cache?model=m").json() == {"removed": 2}
    assert client.delete("/admin/cache?all=true").json() == {"removed": 1}
    assert entries(client) == 0


def test_an_export_is_taken_in_again_once(pair: Pair) -> None:
    client, _ = pair
    lines = client.get("/admin/cache/export").content
    client.delete("/admin/cache?all=true")
    assert client.post("/admin/cache/import", content=lines).json() == {"imported": 3, "skipped": 0}
    assert client.post("/admin/cache/import", content=lines).json() == {"imported": 0, "skipped": 3}
    bad = client.post("/admin/cache/import", content=lines + b"5\n")
    assert (bad.status_code, entries(client)) == (400, 3)
    assert "line 4" in bad.json()["error"]["message"]


def test_a_bad_limit_is_named(pair: Pair) -> None:
    for limit in ("x", "-1", "%C2%B2", "inf", "1e308", "9" * 400, "nan"):
        answer = pair[0].get(f"/admin/cache?limit={limit}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


def test_admin_routes_never_reach_the_upstream(pair: Pair) -> None:
    client, asked = pair
    for method, path in [("GET", "/admin/nothing"), ("GET", "/admin"), ("POST", "/admin/cache"), ("POST", "/health")]:
        answer = client.request(method, path, headers={"authorization": "Bearer admin"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert asked == []


def test_every_response_carries_a_request_id(pair: Pair) -> None:
    for method, path in (("GET", "/health"), ("GET", "/admin/cache"), ("GET", "/admin/nothing"), ("PROPFIND", "/x")):
        answer = pair[0].request(method, path, headers={"x-request-id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        assert answer.status_code < 400 or answer.json()["error"]["type"] == "invalid_request_error"
