"""Web pages of an upstream have no part in the proxy's origin; the dashboard's session needs two halves."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from kvproxy.http.admin_sessions import SESSION_HEADER, SESSION_SECONDS, AdminSessions
from tests.servers import run_front, run_upstream

ORIGIN_POLICIES = {
    "service-worker-allowed": "/",
    "clear-site-data": '"*"',
    "strict-transport-security": "max-age=9",
    "alt-svc": 'h3="evil.example:443"',
    "secure-session-registration": '(ES256);path="/x/session"',
    "sec-session-registration": '(ES256);path="/x/session"',
    "accept-ch": "Sec-CH-UA-Full-Version-List",
    "set-login": "logged-in",
    "nel": '{"report_to": "x", "max_age": 9}',
    "report-to": '{"group": "x", "max_age": 9, "endpoints": [{"url": "https://evil.example"}]}',
}


async def answer(request: Request) -> Response:
    """Answer with the media types of the query."""
    response = Response("<script>alert(1)</script>", headers=ORIGIN_POLICIES)
    del response.headers["content-length"]
    for media in request.query_params.getlist("type"):
        response.headers.append("content-type", media)
    return response


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        run_upstream(answer) as upstream,
        run_front(tmp_path_factory.mktemp("isolation"), upstream, admin_token="secret") as (found, _),
    ):
        yield found


@pytest.mark.parametrize("path", ["/x/worker.js", "/v1/models", "/ui/app.js", "/admin/cache"])
@pytest.mark.parametrize(
    "headers",
    [
        {"service-worker": "script"},
        {"service-worker": "script", "sec-fetch-dest": "serviceworker", "sec-fetch-site": "same-origin"},
        *({"sec-fetch-dest": each} for each in ("sharedworker", "worker", "audioworklet", "paintworklet")),
    ],
)
def test_no_worker_receives_a_script(url: str, path: str, headers: dict[str, str]) -> None:
    refused = httpx.get(url + path, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    # A worker that is registered already goes with the storage.
    assert refused.headers["clear-site-data"] == '"storage"'


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_upstream_sets_no_policy_for_the_whole_origin(url: str, method: str) -> None:
    for path in ("/x/page", "/v1/chat/completions"):
        received = httpx.request(method, url + path, json={"model": "m", "messages": []})
        assert not set(ORIGIN_POLICIES) & set(received.headers)


@pytest.mark.parametrize(
    "types",
    [
        ["text/html"],
        ["text/html; charset=utf-8"],
        ["application/xhtml+xml"],
        ["text/xml"],
        ["image/svg+xml"],
        ["application/rss+xml"],
        ["multipart/x-mixed-replace; boundary=x"],
        ["*/*"],
        ["nonsense"],
        [],
        ["application/json", "text/html"],
        ["application/json, text/html"],
        ["application/json; charset=utf-8, text/html"],
        ["application/pdf"],
    ],
)
def test_documents_are_sandboxed_also_for_browsers_without_fetch_metadata(url: str, types: list[str]) -> None:
    for headers in ({}, {"sec-fetch-dest": "document"}, {"sec-fetch-dest": "empty"}, {"sec-fetch-dest": "image"}):
        received = httpx.get(f"{url}/x/page", params={"type": types}, headers=headers)
        assert "sandbox" in received.headers.get_list("content-security-policy"), headers
        assert received.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("media", ["application/json", "text/event-stream; charset=utf-8", "audio/mpeg", "image/png"])
def test_other_responses_are_passed_on_unless_shown_as_documents(url: str, media: str) -> None:
    params = {"type": media}
    assert "content-security-policy" not in httpx.get(f"{url}/x/page", params=params).headers
    for shown_as in ("document", "iframe", "frame", "object", "embed"):
        received = httpx.get(f"{url}/x/page", params=params, headers={"sec-fetch-dest": shown_as})
        assert received.headers["content-security-policy"] == "sandbox"


def test_a_session_needs_the_cookie_and_the_header(url: str) -> None:
    with httpx.Client(base_url=url) as browser:
        assert browser.post("/admin/session").status_code == 401
        assert browser.post("/admin/session", headers={"authorization": "Bearer wrong"}).status_code == 401
        begun = browser.post("/admin/session", headers={"authorization": "Bearer secret", "origin": url})
        attributes = begun.headers["set-cookie"].lower()
        assert "httponly" in attributes
        assert "samesite=strict" in attributes
        # Limited to the admin routes, so that no upstream receives it.
        assert "path=" not in attributes
        assert "secret" not in begun.text + attributes
        proof = {SESSION_HEADER: begun.json()["session"]}
        assert browser.get("/admin/cache").status_code == 401
        assert browser.get("/admin/cache", headers={SESSION_HEADER: "0" * 64}).status_code == 401
        assert httpx.get(f"{url}/admin/cache", headers=proof).status_code == 401
        assert browser.get("/admin/cache", headers=proof).status_code == 200
        assert browser.get("/admin/health", headers=proof).json()["backend"]
        for foreign in ({"origin": "null"}, {"origin": "http://127.0.0.1:1"}, {"sec-fetch-site": "same-site"}):
            assert browser.delete("/admin/cache?all=true", headers=proof | foreign).status_code in (401, 403)
        # Another tab extends the session, which the first tab keeps.
        again = browser.post("/admin/session", headers={"authorization": "Bearer secret"})
        assert again.json()["session"] == proof[SESSION_HEADER]
        browser.delete("/admin/session", headers=proof)
        assert browser.get("/admin/cache", headers=proof).status_code == 401


def test_the_cookie_is_secure_behind_https(tmp_path: Path) -> None:
    access = {"hosts": ["llm.example.org"]}
    with run_front(tmp_path, "http://127.0.0.1:9", admin_token="secret", access=access) as (url, _):
        headers = {"authorization": "Bearer secret", "host": "llm.example.org", "origin": "https://llm.example.org"}
        assert "; secure" in httpx.post(f"{url}/admin/session", headers=headers).headers["set-cookie"].lower()


def test_sessions_end_and_belong_to_one_token() -> None:
    now = 1000.0
    sessions, other = AdminSessions("secret", lambda: now), AdminSessions("other", lambda: now)
    session = sessions.begin({})
    cookies = {sessions.cookie_name: session.cookie}
    assert sessions.is_valid(cookies, session.proof)
    assert AdminSessions("secret", lambda: now).is_valid(cookies, session.proof)
    assert not other.is_valid({other.cookie_name: session.cookie}, session.proof)
    assert not sessions.is_valid({sessions.cookie_name: session.cookie.replace(".", "0.", 1)}, session.proof)
    for odd in ("", ".", "..", "a.b.c", "é.1.é", session.proof):
        assert not sessions.is_valid({sessions.cookie_name: odd}, session.proof)
    now += SESSION_SECONDS
    assert not sessions.is_valid(cookies, session.proof)
