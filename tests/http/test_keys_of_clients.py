"""Clients and their keys: who has none is turned away, each is a tenant of its own, and no key leaves the proxy."""

import asyncio
import json
import stat
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kvproxy.clients.client_keys import add_client, all_clients, clients_file, key_digest, remove_client, rotate_key
from kvproxy.errors import InvalidRequest, NotFound, SettingsError
from kvproxy.http import client_authentication
from kvproxy.http.serve import serve
from kvproxy.settings import Settings, load_settings
from tests.commands.run import kvproxy
from tests.http.conftest import Recorder
from tests.polling import until
from tests.requests import post
from tests.servers import run_proxy, run_upstream
from tests.statuses import makes_entry


def settings(data: Path, upstream: str, **fields: object) -> Settings:
    return load_settings(data=data, upstream=upstream, cache={"semantic": False}, **fields)


def test_only_clients_are_answered(tmp_path: Path, recorder: Recorder) -> None:
    found = settings(tmp_path, recorder.url, admin_token="operators")
    one, two = add_client(found, "one"), add_client(found, "two")
    with run_proxy(found) as (url, services):
        for headers in ({}, {"authorization": "Bearer x"}, {"x_api_key": key_digest(one)}, {"authorization": one[:-1]}):
            for path in ("/v1/chat/completions", "/v1/rerank"):
                refused = post(url, path=path, **headers)
                code, text = (
                    ("invalid_api_key", "does not know") if headers else ("missing_api_key", "no API key was given")
                )
                error = refused.json()["error"]
                assert (refused.status_code, error["code"], text in error["message"]) == (401, code, True)
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/health").status_code == httpx.get(f"{url}/ready").status_code == 200
        assert makes_entry(post(url, authorization=f"Bearer {one}").headers["cache-status"])
        assert "hit" in post(url, x_api_key=one).headers["cache-status"]
        # Another client's answers are its own.
        assert "; stored" in post(url, api_key=two, cache_control="confirm").headers["cache-status"]
        assert {entry.tenant for entry in services.cache.store.list_entries()} == {"client:one", "client:two"}
        post(url, path="/v1/rerank", authorization=f"Bearer {two}")
        told = post(url, path="/admin/explain", authorization=f"Bearer {one}", x_kvproxy_admin_token="operators").json()
        assert (told["tenant"], told["layer"]) == ("client:one", "exact")
        assert post(url, path="/admin/explain", authorization=f"Bearer {one}").status_code == 401
    assert not [headers for headers in recorder.headers if one in str(headers) or two in str(headers)]


def test_the_upstream_gets_its_own_key_and_never_ours(tmp_path: Path, recorder: Recorder) -> None:
    found = settings(tmp_path, recorder.url, forward={"api_key": "operators"})
    key = add_client(found, "one")
    with run_proxy(found) as (url, _):
        assert post(url, authorization=f"Bearer {key}", x_api_key="clients-own").status_code == 200
    (headers,) = [headers for headers in recorder.headers if "content-length" in headers]
    assert {name: headers.get(name) for name in ("authorization", "x-api-key")} == {
        "authorization": None,
        "x-api-key": "operators",
    }


def test_a_key_that_was_taken_back_is_noticed(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_authentication, "_CHECK_SECONDS", 0.2)
    found = settings(tmp_path, recorder.url)
    one = add_client(found, "one")
    with run_proxy(found) as (url, _):
        assert post(url, x_api_key=one).status_code == 200
        two = add_client(found, "two")
        remove_client(found, "one")
        until(lambda: post(url, x_api_key=one).status_code == 401)
        assert post(url, x_api_key=two).status_code == 200
        # A file that cannot be read lets nobody else in.
        clients_file(tmp_path).write_text("{")
        time.sleep(0.3)
        assert post(url, x_api_key=two).status_code == 200
        assert post(url).status_code == 401


@pytest.mark.parametrize("deleted", [True, False])
def test_a_proxy_whose_last_client_has_gone_stays_closed(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    """It was open to everybody, with the operator's key."""
    monkeypatch.setattr(client_authentication, "_CHECK_SECONDS", 0.0)
    found = settings(tmp_path, recorder.url)
    one = add_client(found, "one")
    with run_proxy(found) as (url, _):
        assert post(url, x_api_key=one).status_code == 200
        clients_file(tmp_path).unlink() if deleted else remove_client(found, "one")
        assert post(url).status_code == 401
        assert post(url, x_api_key=one).status_code == 401
        two = add_client(found, "two")
        assert post(url, x_api_key=two).status_code == 200
    remove_client(found, "two")
    with run_proxy(found) as (url, _):
        assert post(url).status_code == 401


def test_users_of_one_client_share_no_answers(tmp_path: Path, recorder: Recorder) -> None:
    found = settings(tmp_path, recorder.url, admin_token="t")
    one, two = add_client(found, "one"), add_client(found, "two")
    headers = ("x_forwarded_user", "x_auth_request_email", "openai_organization", "cookie", "x_remote_user")
    with run_proxy(found) as (url, services):
        for header in ("", *headers):
            for key, user in ((one, "ann"), (one, "bob"), (two, "ann")) if header else ((one, ""),):
                sent = {"x_api_key": key, "cache_control": "confirm"} | ({header: user} if header else {})
                assert "; stored" in post(url, **sent).headers["cache-status"]
                assert "hit" in post(url, **sent).headers["cache-status"]
        tenants = {entry.tenant for entry in services.cache.store.list_entries()}
        assert len(tenants) == 1 + 3 * len(headers)
        assert {tenant.partition("/")[0] for tenant in tenants} == {"client:one", "client:two"}
        # An operator finds them by the client's name.
        found_by_name = httpx.get(
            f"{url}/admin/cache", params={"tenant": "one"}, headers={"authorization": "Bearer t"}
        ).json()
        assert len(found_by_name) == 1 + 2 * len(headers)


def test_a_rotated_key_stays_valid_for_the_grace_period(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_authentication, "_CHECK_SECONDS", 0.0)
    found = settings(tmp_path, recorder.url)
    old = add_client(found, "one", requests_per_minute=100)
    with run_proxy(found) as (url, _):
        assert post(url, x_api_key=old).status_code == 200
        new = rotate_key(found, "one", grace=2.0)
        until(lambda: post(url, x_api_key=new).status_code == 200)
        # Neither key reaches the upstream, and both are the same tenant.
        assert post(url, x_api_key=old).headers["cache-status"].startswith("kvproxy; hit")
        assert not {old, new} & {value for headers in recorder.headers for value in headers.values()}
        until(lambda: post(url, x_api_key=old).status_code == 401, interval=0.3)
        assert post(url, x_api_key=new).status_code == 200
        newest = rotate_key(found, "one", grace=0)
        until(lambda: post(url, x_api_key=new).status_code == 401)
        assert post(url, x_api_key=newest).status_code == 200
    used = json.loads(kvproxy("keys", "ls", "--data", tmp_path, "--json").stdout)[0]["last_used"]
    assert time.time() - 60 < used < time.time()
    assert kvproxy("keys", "rotate", "nobody", "--data", tmp_path).returncode == 3


def test_names_and_files(tmp_path: Path) -> None:
    found = settings(tmp_path, "http://127.0.0.1:9")
    key = add_client(found, "one")
    assert key not in clients_file(tmp_path).read_text()
    assert stat.S_IMODE(clients_file(tmp_path).stat().st_mode) == 0o600
    with pytest.raises(InvalidRequest, match="kvproxy keys set one changes its limits"):
        add_client(found, "one")
    for name in ("", "a b", "../x", "x" * 65, "\u00e9"):
        with pytest.raises(InvalidRequest):
            add_client(found, name)
    with pytest.raises(NotFound):
        remove_client(found, "nobody")
    (tmp_path / "damaged").mkdir()
    clients_file(tmp_path / "damaged").write_text("{broken")
    with pytest.raises(SettingsError) as damaged:
        all_clients(settings(tmp_path / "damaged", "http://127.0.0.1:9"))
    assert damaged.value.message.endswith("; restore it from a backup")
    assert "\n" not in damaged.value.message
    fixed = settings(tmp_path, "http://127.0.0.1:9", clients=[{"name": "two", "key_sha256": key_digest("k")}])
    assert [each.name for each in all_clients(fixed)] == ["two", "one"]
    for change in (add_client, remove_client):
        with pytest.raises(InvalidRequest, match="toml"):
            change(fixed, "two")


def test_nobody_is_served_unknown_beyond_loopback(tmp_path: Path) -> None:
    """A proxy with the operator's key was an open relay for it."""
    found = settings(tmp_path, "http://127.0.0.1:9", host="0.0.0.0", port=0, forward={"api_key": "operators"})
    with pytest.raises(SettingsError, match="--open"):
        serve(found)


def test_the_upstream_receives_no_key_of_another_client(tmp_path: Path, recorder: Recorder) -> None:
    found = settings(tmp_path, recorder.url)
    mine, other, rotated = (add_client(found, name) for name in ("mine", "other", "rotated"))
    rotate_key(found, "rotated", 0.0)
    with run_proxy(found) as (url, _):
        for path in ("/v1/chat/completions", "/v1/files"):
            body = {"model": "m", "messages": [{"role": "user", "content": path}]}
            headers = {
                "authorization": f"Bearer {mine}",
                "x-api-key": other,
                "api-key": rotated,
                "x-goog-api-key": "own",
            }
            assert httpx.post(url + path, json=body, headers=headers).status_code == 200
    assert len(recorder.headers) == 2
    for headers in recorder.headers:
        assert not {mine, other} & {value.removeprefix("Bearer ") for value in headers.values()}
        assert headers["x-goog-api-key"] == "own"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/events", "/v1/file"])
def test_a_response_ends_when_its_client_is_removed(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream may last for an hour."""
    monkeypatch.setattr(client_authentication, "_CHECK_SECONDS", 0.05)
    ended = threading.Event()

    async def parts() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
                await asyncio.sleep(0.02)
        finally:
            ended.set()

    async def answer(request: Request) -> Response:
        await request.body()
        media = "application/octet-stream" if request.url.path == "/v1/file" else "text/event-stream"
        return StreamingResponse(parts(), media_type=media) if request.method == "POST" else Response()

    with run_upstream(answer) as upstream:
        found = settings(tmp_path, upstream)
        key, _ = add_client(found, "one"), add_client(found, "two")
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        received, error = b"", None
        with run_proxy(found) as (url, _), httpx.Client(timeout=30) as client:
            headers = {"authorization": f"Bearer {key}"}
            with client.stream("POST", url + path, json=body, headers=headers) as response:
                assert response.status_code == 200
                try:
                    for part in response.iter_bytes():
                        if not received:
                            remove_client(found, "one")
                        received += part
                except httpx.RemoteProtocolError as broken:
                    error = broken
            # The upstream is not read further.
            assert ended.wait(10)
    if path == "/v1/file":
        assert error is not None
    else:
        assert b"the API key of this request was removed" in received.split(b"data: ")[-1]
