"""Clients reach the public routes of the APIs, and no other route with the operator's key."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.clients.client_keys import add_client, set_limits
from kvproxy.errors import SettingsError
from kvproxy.http.services import Services
from kvproxy.installation.checks.access import access_warnings
from kvproxy.settings import load_settings
from tests.http.conftest import Recorder
from tests.polling import until
from tests.servers import run_proxy

CONTROL = [
    *(
        "POST /sleep",
        "POST /v1/sleep",
        "POST /reset_prefix_cache",
        "POST /collective_rpc",
        "POST /v1/load_lora_adapter",
    ),
    *("POST /flush_cache", "POST /update_weights_from_disk", "GET /get_server_info", "POST /slots/0", "GET /slots"),
    *("POST /lora-adapters", "POST /models/load", "POST /props", "GET /_s", "POST /_set/200", "DELETE /api/delete"),
    *("GET /v1/files", "DELETE /v1/files/abc", "GET /v1/batches", "GET /v1/chat/completions", "DELETE /v1/models/mine"),
    *("GET /v1/fine_tuning/jobs", "GET /v1/organization/users", "GET /v1/vector_stores", "GET /v1/messages/batches"),
    *("POST /v1/audio/%2e%2e/%2e%2e/sleep", "POST /v1/responses/%252e%252e/sleep", "POST /sleep%3f/chat/completions"),
    *("POST /v1/responses/..;/sleep", "OPTIONS /sleep", "PATCH /sleep", "POST /v1/v1/sleep"),
]
PUBLIC = [
    *(
        "POST /v1/images/generations",
        "POST /images/generations",
        "POST /v1/v1/images/generations",
        "POST /v1/audio/speech",
    ),
    *(
        "GET /v1/responses/resp_1",
        "DELETE /responses/resp_1",
        "POST /v1/responses/compact",
        "HEAD /v1/models",
        "GET /v1/models",
    ),
    *(
        "POST /v1/messages/count_tokens",
        "POST /rerank",
        "POST /v2/rerank",
        "POST /tokenize",
        "POST /generate",
        "HEAD /",
    ),
    "GET /v1beta/models/gemini",
]
NAME_A_MODEL = ["POST /openai/deployments/gpt/chat/completions", "POST /v1beta/models/gemini:generateContent"]


@contextlib.contextmanager
def serve(folder: Path, upstream: str, *, keys: bool = True, **access: Any) -> Iterator[tuple[httpx.Client, Services]]:
    """A client of a proxy, which has one client with `keys`."""
    settings = load_settings(data=folder, upstream=upstream, access=access)
    key = add_client(settings, "one", models=("m",)) if keys else "own"
    with (
        run_proxy(settings) as (url, services),
        httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client,
    ):
        yield client, services


def send(client: httpx.Client, route: str) -> httpx.Response:
    method, path = route.split(" ")
    content = b'{"model": "m"}' if method == "POST" and "files" not in path else None
    return client.request(method, path, content=content, headers={"content-type": "application/json"})


def test_a_client_reaches_public_routes_only(tmp_path: Path, recorder: Recorder) -> None:
    with serve(tmp_path, recorder.url) as (client, services):
        for route in CONTROL:
            refused = send(client, route)
            assert refused.status_code == 403, route
            error = refused.json()["error"]
            assert error["type"] == "permission_error"
            assert "for the client one, this proxy forwards only public routes of the APIs" in error["message"]
            assert 'access.routes, such as routes = ["' in error["message"]
        assert recorder.requests == []
        until(lambda: len(services.journal.latest(100)) == len(CONTROL))
        record = services.journal.latest(1)[0]
        assert (record.reason, record.reached_limit) == ("refused-access", "routes")
        assert f'kvproxy_limited_total{{limit="routes"}} {len(CONTROL)}.0' in services.metrics.render().decode()
        for route in PUBLIC:
            assert send(client, route).status_code == 200, route


def test_configured_routes_are_forwarded_too(tmp_path: Path, recorder: Recorder) -> None:
    routes = ["GET /v1/files*", "/v1/batches"]
    with serve(tmp_path, recorder.url, routes=routes) as (client, _):
        for route in ("GET /v1/files", "HEAD /v1/files", "GET /v1/files/a", "POST /v1/batches", "GET /v1/batches"):
            assert send(client, route).status_code == 200, route
        for route in ("DELETE /v1/files/a", "GET /v1/files/%2e%2e/sleep", "GET /v1/batches/a", "POST /sleep"):
            assert send(client, route).status_code == 403, route


def test_a_path_may_name_a_model_only_if_no_limit_depends_on_it(tmp_path: Path, recorder: Recorder) -> None:
    """The upstream may ignore the model in the body, which is the allowed one."""
    with serve(tmp_path, recorder.url) as (client, services):
        limits: list[dict[str, Any]] = [{"models": ("m",)}, {"models": (), "budget_per_day": 1}]
        for limit in limits:
            set_limits(services.settings, "one", limit)
            services.clients.reload()
            for route in NAME_A_MODEL:
                assert send(client, route).status_code == 403, route
        assert recorder.requests == []
        set_limits(services.settings, "one", {"budget_per_day": None})
        services.clients.reload()
        for route in NAME_A_MODEL:
            assert send(client, route).status_code == 200, route


@pytest.mark.parametrize(("keys", "access"), [(False, {}), (True, {"routes": ["*"]})])
def test_all_routes_are_forwarded_without_clients_or_with_an_asterisk(
    tmp_path: Path, recorder: Recorder, keys: bool, access: dict[str, Any]
) -> None:
    with serve(tmp_path, recorder.url, keys=keys, **access) as (client, _):
        for route in ("POST /sleep", "GET /v1/files", "POST /v1/images/generations"):
            assert send(client, route).status_code == 200


def test_the_setting_also_restricts_a_proxy_without_clients(tmp_path: Path, recorder: Recorder) -> None:
    with serve(tmp_path, recorder.url, keys=False, routes=[]) as (client, _):
        assert send(client, "POST /v1/images/generations").status_code == 200
        refused = send(client, "POST /sleep")
        assert refused.status_code == 403
        assert refused.json()["error"]["message"].startswith("this proxy forwards only public routes")


def test_an_open_proxy_warns_of_control_routes(tmp_path: Path) -> None:
    def warnings(upstream: str | None = "http://127.0.0.1:9", host: str = "0.0.0.0", **access: Any) -> list[str]:
        given: dict[str, Any] = {"admin_token": "secret", "host": host, "access": {"open": True, **access}}
        return access_warnings(load_settings(data=tmp_path, upstream=upstream, **given))

    (warning,) = warnings()
    assert warning.startswith(
        "0.0.0.0: everybody who reaches this proxy also reaches the control routes of its upstreams"
    )
    assert warnings(routes=[]) == warnings(host="127.0.0.1") == warnings(upstream=None) == []
    add_client(load_settings(data=tmp_path), "one")
    assert warnings() == []


def test_a_route_of_the_setting_begins_with_a_slash(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"access\.routes"):
        load_settings(data=tmp_path, access={"routes": ["v1/files"]})
