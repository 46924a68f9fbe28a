"""Admin routes: removals, refusals, and imports. The commands' tests cover their output."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.plain_upstream import run_plain_upstream
from tests.requests import chat
from tests.servers import run_front


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a proxy that holds three answers."""
    with (
        run_plain_upstream() as target,
        run_front(tmp_path, target) as (url, _),
        httpx.Client(base_url=url, headers={"x-request-id": "mine"}) as client,
    ):
        for model, question in [("m", "one"), ("m", "two"), ("other", "one")]:
            headers = {"x-kvproxy-tags": f"{model}, v1 ,{model}", "cache-control": "confirm"}
            body = chat(question, model=model)
            assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        yield client


def entries(client: httpx.Client) -> int:
    return int(client.get("/admin/cache/stats").json()["entries"])


def test_entries_are_removed_by_model_tag_or_all_and_only_if_clearly_asked_for(client: httpx.Client) -> None:
    for query in ("", "?all=false", "?all=", "?older_than=abc", "?older_than=nan", "?older_than=-1"):
        answer = client.delete(f"/admin/cache{query}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert entries(client) == 3
    (first, *_) = client.get("/admin/cache").json()
    assert client.delete(f"/admin/cache/{first['id']}?soft=true").json() == {"expired": 1}
    assert entries(client) == 3
    assert client.delete("/admin/cache?model=m&prompt=one").json() == {"removed": 1}
    assert client.delete("/admin/cache?tag=m").json() == {"removed": 1}
    assert client.delete("/admin/cache?all=true").json() == {"removed": 1}
    assert entries(client) == 0


def test_an_entry_says_where_it_came_from(client: httpx.Client) -> None:
    (listed,) = client.get("/admin/cache", params={"search": "two"}).json()
    shown = client.get(f"/admin/cache/{listed['id'][:10]}").json()
    assert (shown["tags"], shown["tenant"], shown["request_id"]) == (["m", "v1"], "public", "mine")
    assert shown["backend"].startswith("upstream:http://127.0.0.1:")
    assert shown["created"] > 1e9


def test_a_bad_limit_and_an_unknown_api_are_named(client: httpx.Client) -> None:
    for limit in ("x", "-1", "%C2%B2", "inf", "1e308", "9" * 400, "nan"):
        answer = client.get(f"/admin/cache?limit={limit}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")
    answer = client.post("/admin/explain", params={"api": "speech"}, json={})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "api")


def test_unknown_parameters_are_refused_with_the_known_ones(client: httpx.Client) -> None:
    for path, known in (
        ("/admin/cache", "its parameters are namespace, model, "),
        ("/admin/log", "its parameters are "),
        ("/admin/log/live", "its parameters are "),
        ("/admin/savings", "its parameters are "),
        ("/admin/keys/history", "its parameters are limit, in the query"),
        ("/admin/cache/export", "it has no parameters"),
        ("/admin/cache/stats", "it has no parameters"),
    ):
        refused = client.get(path, params={"modle": "m"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "modle"), path
        assert f"the parameter 'modle' is unknown: {known}" in refused.json()["error"]["message"]
    # A form may send an empty filter.
    assert len(client.get("/admin/cache", params={"model": ""}).json()) == 3


def test_a_wrong_method_gets_the_allowed_ones(client: httpx.Client) -> None:
    for method, path, allowed in (
        ("PUT", "/admin/cache", "DELETE, GET, HEAD"),
        ("GET", "/admin/keys/one/rotate", "POST"),
        ("POST", "/admin/savings", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/metrics", "GET, HEAD"),
    ):
        refused = client.request(method, path)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed), (path, refused.text)
        assert refused.json()["error"]["type"] == "invalid_request_error"
        assert f"{method} {path}: the methods of this route are {allowed}" in refused.json()["error"]["message"]
    assert client.put("/admin/nothing").status_code == 404


def test_every_response_carries_a_request_id(client: httpx.Client) -> None:
    for method, path in (("GET", "/health"), ("GET", "/admin/cache"), ("GET", "/admin/nothing"), ("PROPFIND", "/x")):
        answer = client.request(method, path)
        assert answer.headers["x-request-id"] == "mine"
        assert answer.status_code < 400 or answer.json()["error"]["type"] == "invalid_request_error"
