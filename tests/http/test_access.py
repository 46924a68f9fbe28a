"""Access to the admin routes."""

from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from kvproxy.http.admin.app import ROUTES
from kvproxy.http.app import create_app
from kvproxy.http.services import build_services
from kvproxy.settings import Settings, load_settings
from tests.http.conftest import Recorder
from tests.servers import run_front


def settings(data: Path, **fields: object) -> Settings:
    return load_settings(data=data, upstream="http://127.0.0.1:9", cache={"semantic": False}, **fields)


def client_of(found: Settings) -> TestClient:
    return TestClient(create_app(build_services(found)), base_url="http://127.0.0.1")


def status(client: TestClient, headers: Mapping[str, str | bytes], base: str = "") -> int:
    return client.get(f"{base}/admin/cache", headers=headers).status_code  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["", " "])
def test_an_empty_token_opens_nothing_beyond_loopback(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a variable that a script did not set."""
    monkeypatch.setenv("KVPROXY_ADMIN_TOKEN", token)
    with client_of(settings(tmp_path, host="0.0.0.0")) as client:
        for given in ("", "Bearer", "Bearer ", f"Bearer {token}"):
            assert status(client, {"authorization": given} if given else {}) == 401


def test_a_token_is_compared_whole(tmp_path: Path) -> None:
    given: list[tuple[dict[str, str | bytes], int]] = [
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "bearer secret"}, 200),
        ({"x-kvproxy-admin-token": "secret", "authorization": "Bearer of-a-tenant"}, 200),
        ({"authorization": "secret"}, 401),
        ({"authorization": "Bearer secre"}, 401),
        ({"authorization": "Bearer Secret"}, 401),
        ({"authorization": b"Bearer \xff\xfe"}, 401),
        ({"x-kvproxy-admin-token": ""}, 401),
        ({}, 401),
    ]
    with client_of(settings(tmp_path, admin_token="secret")) as client:
        assert [status(client, headers) for headers, _ in given] == [wanted for _, wanted in given]


def test_a_metrics_token_opens_the_metrics_and_no_admin_route(tmp_path: Path) -> None:
    reader, operator = ({"authorization": f"Bearer {token}"} for token in ("reads", "secret"))
    with client_of(settings(tmp_path, host="0.0.0.0", admin_token="secret", metrics_token="reads")) as client:
        found = [client.get("/metrics", headers=headers).status_code for headers in (reader, operator, {})]
        assert found == [200, 200, 401]
        assert (status(client, reader), status(client, operator)) == (401, 200)
        assert client.post("/admin/keys", params={"name": "a"}, headers=reader).status_code == 401
        assert "data" not in client.get("/health", headers=reader).json()
        refused = client.get("/metrics", headers={"authorization": "Bearer read"})
        assert (refused.status_code, "set metrics_token" in refused.json()["error"]["message"]) == (401, True)
    # Without an admin token, a scraper beyond loopback needs only this one.
    with client_of(settings(tmp_path / "b", host="0.0.0.0", metrics_token="reads")) as client:
        assert client.get("/metrics", headers=reader).status_code == 200
        assert status(client, reader) == 401


def test_web_pages_and_other_names_are_turned_away_on_loopback(tmp_path: Path) -> None:
    with client_of(settings(tmp_path, access={"origins": ["*"], "hosts": ["known.example"]})) as client:
        assert status(client, {}) == 200
        assert status(client, {"origin": "http://evil.example"}) == 401
        assert status(client, {}, "http://known.example") == 401
        assert status(client, {}, "http://rebound.example") == 403


def test_the_proxys_own_page_may_change_things_on_loopback(tmp_path: Path) -> None:
    """The dashboard's buttons; a page of another origin that may use the other routes may not."""
    with client_of(settings(tmp_path, access={"origins": ["*"]})) as client:
        for headers, wanted in (
            ({"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}, 200),
            ({"origin": "http://127.0.0.1:3000"}, 401),
            ({"origin": "null"}, 401),
            ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 401),
            ({"origin": "http://127.0.0.1", "x-forwarded-for": "203.0.113.9"}, 403),
        ):
            assert client.delete("/admin/cache?all=true", headers=headers).status_code == wanted, headers


@pytest.mark.parametrize(
    "header", ["forwarded", "via", "x-forwarded-for", "x-forwarded-proto", "x-real-ip", "x-forwarded-host"]
)
def test_admin_routes_are_closed_behind_a_reverse_proxy(tmp_path: Path, header: str) -> None:
    """With it, all requests come from loopback."""
    with client_of(settings(tmp_path)) as client:
        assert status(client, {header: "203.0.113.9"}) == 403
    with client_of(settings(tmp_path, admin_token="t")) as client:
        assert status(client, {header: "203.0.113.9", "authorization": "Bearer t"}) == 200


@pytest.mark.parametrize("forwarded", ["/health", "/v1/models", "/nowhere"])
def test_a_forwarded_request_closes_the_admin_routes_for_good(
    tmp_path: Path, forwarded: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that lacks the header may come through the same reverse proxy."""
    with client_of(settings(tmp_path)) as client:
        assert client.get("/admin/cache").status_code == 200
        client.get(forwarded, headers={"x-forwarded-for": "203.0.113.9"})
        refused = client.get("/admin/cache")
    assert refused.status_code == 403
    assert "admin_token" in refused.json()["error"]["message"]
    assert sum("a reverse proxy forwards requests" in record.getMessage() for record in caplog.records) == 1
    caplog.clear()
    with client_of(settings(tmp_path, admin_token="t")) as client:
        client.get(forwarded, headers={"x-forwarded-for": "203.0.113.9"})
    assert not any("reverse proxy" in record.getMessage() for record in caplog.records)


def test_what_is_private_is_told_to_the_operator_only(tmp_path: Path) -> None:
    with client_of(settings(tmp_path, admin_token="t")) as client:
        operator = {"authorization": "Bearer t"}
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers=operator).status_code == 200
        assert set(client.get("/health").json()) == {"status", "version"}
        assert client.get("/health", headers=operator).json()["data"] == str(tmp_path)


def test_what_the_operator_changes_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "kvproxy.admin"), client_of(settings(tmp_path)) as client:
        client.get("/admin/cache")
        client.delete("/admin/cache", params={"all": "true"})
        client.delete("/admin/cache", params={"all": "true"}, headers={"x-forwarded-for": "203.0.113.9"})
        client.delete("/admin/cache", params={"token": "SECRET", "all": "true", "x-SECRET": ""})
    told = [record.getMessage() for record in caplog.records if record.name == "kvproxy.admin"]
    assert [line.rsplit(": ")[-1] for line in told] == ["200", "403", "403"]
    assert "SECRET" not in caplog.text
    assert all("DELETE /admin/cache?all=true" in line for line in told)


def test_every_admin_route_lies_behind_the_guard(tmp_path: Path) -> None:
    with client_of(settings(tmp_path, admin_token="t")) as client:
        for route in ROUTES:
            path = "/admin" + route.path.replace("{path:path}", "x").replace("{id}", "x").replace("{name}", "x")
            for method in (route.methods or set()) - {"HEAD"}:
                assert client.request(method, path).status_code == 401, (method, path)


def test_the_admin_token_stays_here(tmp_path: Path, recorder: Recorder) -> None:
    """Our own header must not reach an upstream, on no route."""
    with run_front(tmp_path, recorder.url) as (proxy, _):
        headers = {"x-kvproxy-admin-token": "secret", "x-other": "a"}
        httpx.post(f"{proxy}/v1/chat/completions", json={"model": "m", "messages": []}, headers=headers)
        httpx.get(f"{proxy}/v1/files", headers=headers)
    assert [headers for headers in recorder.headers if "x-other" in headers]
    assert not [headers for headers in recorder.headers if "x-kvproxy-admin-token" in headers]
