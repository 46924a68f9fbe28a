"""A refused key of the settings is a failure of its upstream; a refused key of a client is the client's concern."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy
from tests.servers import run_proxy, run_upstream
from tests.upstreams.fleets import WHOLE

PROVIDERS_TEXT = "Incorrect API key provided: sk-re**oked"


class Provider:
    """An API that answers requests with its key only."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.statuses: Counter[int] = Counter()

    async def answer(self, request: Request) -> Response:
        if request.url.path == "/health":
            return Response()
        key = request.headers.get("authorization", request.headers.get("x-api-key", "")).removeprefix("Bearer ")
        status = 200 if key == self.key and "openai-organization" not in request.headers else 401
        self.statuses[status] += request.method == "POST"
        error = {"error": {"message": PROVIDERS_TEXT, "code": "invalid_api_key"}}
        return JSONResponse(WHOLE if status == 200 else error, status)


class Proxy:
    def __init__(self, url: str, services: Services) -> None:
        self.url, self.services = url, services

    def post(
        self, path: str = "/v1/chat/completions", *, method: str = "POST", side_effects: bool = False, **headers: str
    ) -> httpx.Response:
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "store": side_effects}
        sent = {f"openai-{name}" if name == "organization" else name: value for name, value in headers.items()}
        return httpx.request(method, f"{self.url}{path}", json=body, headers=sent, timeout=300)

    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics").raise_for_status().text

    def statuses(self) -> list[dict[str, Any]]:
        return list(httpx.get(f"{self.url}/admin/upstreams").raise_for_status().json())


@contextmanager
def running(data: Path, *upstreams: tuple[Provider, dict[str, object]]) -> Iterator[Proxy]:
    with ExitStack() as stack:
        servers = [{"url": stack.enter_context(run_upstream(provider.answer)), **key} for provider, key in upstreams]
        # The file of a key is read again only after a refusal.
        routing = {"metrics_interval": 300.0, "health_interval": 0.1}
        settings = load_settings(data=data, upstreams=servers, cache={"enabled": False}, routing=routing)
        yield Proxy(*stack.enter_context(run_proxy(settings)))


def test_another_upstream_answers_and_the_one_with_a_revoked_key_is_ejected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    revoked, good = Provider("new"), Provider("good")
    first = {"api_key": "revoked", "weight": 1e6}
    with running(tmp_path, (revoked, first), (good, {"api_key": "good"})) as proxy:
        assert [proxy.post(side_effects=True).status_code for _ in range(6)] == [200] * 6
        assert revoked.statuses == {401: 3}
        assert good.statuses == {200: 6}
        status, other = proxy.statuses()
        assert (status["state"], status["errors"], status["retried"], other["errors"]) == ("ejected", 3, 3, 0)
        refusal = f"{status['url']} refuses the key that kvproxy has for it"
        assert refusal in kvproxy("upstreams", url=proxy.url).stdout
        assert f'kvproxy_upstream_errors_total{{upstream="{status["url"]}"}} 3' in proxy.metrics()
    warnings = [line for line in caplog.messages if "refuses its API key" in line]
    assert len(warnings) == 1
    assert len([line for line in caplog.messages if "trying another upstream" in line]) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/files", "/v1/models"])
def test_the_error_of_the_only_upstream_names_the_key_of_the_proxy(tmp_path: Path, path: str) -> None:
    with running(tmp_path, (Provider("new"), {"api_key": "revoked"})) as proxy:
        method = "GET" if path == "/v1/models" else "POST"
        answer = proxy.post(path, method=method, authorization="Bearer mine")
        assert answer.status_code == 502
        assert "refuses the key that kvproxy has for it (401), not the key of the client" in answer.text
        assert PROVIDERS_TEXT not in answer.text
        error = answer.json()["error"]
        if path == "/v1/messages":
            assert (answer.json()["type"], error["type"]) == ("error", "api_error")
        else:
            assert error["code"] == "upstream_key_refused"


def test_requests_of_uncached_routes_eject_no_upstream(tmp_path: Path) -> None:
    with running(tmp_path, (Provider("new"), {"api_key": "revoked"})) as proxy:
        assert [proxy.post("/v1/files").status_code for _ in range(4)] == [502] * 4
        (status,) = proxy.statuses()
        assert (status["state"], status["errors"]) == ("up", 4)


def test_a_rotated_key_file_is_read_again_at_once(tmp_path: Path) -> None:
    provider, file = Provider("old"), tmp_path / "key"
    file.write_text("old")
    with running(tmp_path, (provider, {"api_key_file": str(file)})) as proxy:
        assert proxy.post().status_code == 200
        file.write_text("new")
        provider.key = "new"
        assert [proxy.post().status_code for _ in range(3)] == [200] * 3
        assert provider.statuses == {200: 4, 401: 1}
        (status,) = proxy.statuses()
        assert (status["errors"], status["sent"]) == (0, 4)


def test_a_new_key_ends_the_ejection(tmp_path: Path) -> None:
    provider, file = Provider("new"), tmp_path / "key"
    file.write_text("revoked")
    with running(tmp_path, (provider, {"api_key_file": str(file)})) as proxy:
        assert [proxy.post().status_code for _ in range(3)] == [502] * 3
        assert proxy.statuses()[0]["state"] == "ejected"
        file.write_text("new")
        assert proxy.post().status_code == 200
        (status,) = proxy.statuses()
        assert (status["state"], status["error"]) == ("up", None)


def test_a_refused_key_or_account_of_the_client_is_relayed(tmp_path: Path) -> None:
    provider = Provider("good")
    with running(tmp_path / "own", (provider, {})) as proxy:
        answers = [proxy.post(authorization="Bearer mine") for _ in range(4)]
        assert {(answer.status_code, PROVIDERS_TEXT in answer.text) for answer in answers} == {(401, True)}
        assert (proxy.statuses()[0]["state"], proxy.statuses()[0]["errors"]) == ("up", 0)
    with running(tmp_path / "account", (provider, {"api_key": "good"})) as proxy:
        answer = proxy.post(organization="org-unknown")
        assert (answer.status_code, PROVIDERS_TEXT in answer.text) == (401, True)
        assert proxy.statuses()[0]["errors"] == 0
