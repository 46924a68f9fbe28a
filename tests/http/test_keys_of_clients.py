"""Clients and their keys: a request without one is refused, each client is a tenant of its own, and no key leaves the proxy."""

import asyncio
import contextlib
import errno
import json
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import openai
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kvproxy.clients import change_log
from kvproxy.clients.client_keys import (
    add_client,
    all_clients,
    key_digest,
    remove_client,
    rotate_key,
    set_disabled,
    set_limits,
)
from kvproxy.clients.stored_clients import clients_file
from kvproxy.errors import InvalidRequest, NotFound, SettingsError
from kvproxy.http import client_authentication
from kvproxy.http.serve import serve
from kvproxy.journal.schema import TABLES, view_sql
from kvproxy.operations.keys import list_clients
from kvproxy.operations.keys_parameters import ClientUsageQuery
from kvproxy.settings import Settings, load_settings
from tests.commands.run import kvproxy, result
from tests.http.conftest import Recorder
from tests.polling import until
from tests.requests import chat, post
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
        # An unreadable file admits no other client.
        clients_file(tmp_path).write_text("{")
        time.sleep(0.3)
        assert post(url, x_api_key=two).status_code == 200
        assert post(url).status_code == 401


@pytest.mark.parametrize("deleted", [True, False])
def test_a_proxy_whose_last_client_has_gone_stays_closed(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    """An open proxy would forward any request with the operator's key."""
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
    with run_proxy(found) as (url, services):
        assert post(url, x_api_key=old).status_code == 200
        new = rotate_key(found, "one", grace=2.0)
        until(lambda: post(url, x_api_key=new).status_code == 200)
        # Neither key reaches the upstream, and both are the same tenant.
        assert post(url, x_api_key=old).headers["cache-status"].startswith("kvproxy; hit")
        assert not {old, new} & {value for headers in recorder.headers for value in headers.values()}
        until(lambda: post(url, x_api_key=old).status_code == 401, interval=0.3)
        replaced = post(url, x_api_key=old).json()["error"]["message"]
        assert "key of the client one was replaced, and has expired: use the new key" in replaced
        assert 'kvproxy_limited_total{limit="expires"} 0.0' in services.metrics.render().decode()
        assert post(url, x_api_key=new).status_code == 200
        newest = rotate_key(found, "one", grace=0)
        until(lambda: post(url, x_api_key=new).status_code == 401)
        assert post(url, x_api_key=newest).status_code == 200
    (listed,) = json.loads(kvproxy("keys", "ls", "--data", tmp_path, "--json").stdout)
    assert time.time() - 60 < listed["last_used"] < time.time()
    # The end of the previous key is over.
    assert listed["previous_key_expires"] is None
    assert kvproxy("keys", "rotate", "nobody", "--data", tmp_path).returncode == 3
    missing = tmp_path / "missing"
    removed = kvproxy("keys", "rm", "one", "--data", missing)
    assert (removed.returncode, f"there is no data folder {missing}" in removed.stderr) == (3, True)
    assert not missing.exists()
    notes = [kvproxy("keys", "rotate", "one", *grace, "--data", tmp_path).stderr for grace in ((), ("--grace", "0s"))]
    assert ["; --grace 0s ends it now" in note for note in notes] == [True, False]


def test_a_model_that_no_upstream_serves_is_named_when_a_client_gets_it(tmp_path: Path) -> None:
    (tmp_path / "kvproxy.toml").write_text('upstreams = [{url = "http://127.0.0.1:9", models = ["qwen-*"]}]\n')
    for arguments in (("add", "one", "--models", "qwne*"), ("set", "one", "--models", "qwne*,qwen-7b")):
        done = kvproxy("keys", *arguments, "--data", tmp_path)
        assert (done.returncode, done.stderr.count("may use qwne*, which matches no model")) == (0, 1)
    assert "matches no model" not in kvproxy("keys", "set", "one", "--models", "qwen-7b", "--data", tmp_path).stderr


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
        for path in ("/v1/chat/completions", "/v1/moderations"):
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


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("/v1/chat/completions", remove_client, b"the API key of this request was removed"),
        ("/v1/chat/completions", partial(set_disabled, disabled=True), b"the client one is disabled"),
        ("/v1/audio/transcriptions", remove_client, b"the API key of this request was removed"),
        ("/v1/audio/speech", remove_client, None),
    ],
)
def test_a_response_ends_when_its_client_is_removed_or_disabled(
    tmp_path: Path, path: str, change: Callable[..., None], message: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        media = "application/octet-stream" if request.url.path == "/v1/audio/speech" else "text/event-stream"
        return StreamingResponse(parts(), media_type=media) if request.method == "POST" else Response()

    with run_upstream(answer) as upstream:
        found = settings(tmp_path, upstream)
        key, _ = add_client(found, "one"), add_client(found, "two")
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        received, error = b"", None
        with run_proxy(found) as (url, _), httpx.Client(timeout=300) as client:
            headers = {"authorization": f"Bearer {key}"}
            with client.stream("POST", url + path, json=body, headers=headers) as response:
                assert response.status_code == 200
                try:
                    for part in response.iter_bytes():
                        if not received:
                            change(found, "one")
                        received += part
                except httpx.RemoteProtocolError as broken:
                    error = broken
            # The upstream is not read further.
            assert ended.wait(300)
    if message is None:
        assert error is not None
    else:
        assert message in received.split(b"data: ")[-1]


def test_a_client_has_models_and_an_expiry(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_authentication, "_CHECK_SECONDS", 0.0)
    found = settings(tmp_path, recorder.url)
    key = add_client(found, "one", models=("small-*", "embedder"))
    with run_proxy(found) as (url, _):

        def ask(path: str, model: str, **headers: str) -> httpx.Response:
            body = {"model": model, "messages": [{"role": "user", "content": "x"}], "input": "x"}
            return httpx.post(f"{url}{path}", json=body, headers={"x-api-key": key, **headers}, timeout=300)

        for path in ("/v1/chat/completions", "/v1/rerank", "/v1/messages/count_tokens"):
            assert [ask(path, model).status_code for model in ("small-1", "embedder", "large")] == [200, 200, 403]
        error = ask("/v1/chat/completions", "large").json()["error"]
        assert "may not use the model 'large', only small-*, embedder" in error["message"]
        # A body whose model the proxy cannot read could name any model.
        unread = httpx.post(f"{url}/v1/rerank", content=b"model=large", headers={"x-api-key": key})
        assert (unread.status_code, "no field model that the proxy can read" in unread.text) == (403, True)
        for path in ("/v1/chat/completions", "/v1/rerank"):
            invalid = httpx.post(
                f"{url}{path}",
                content=b'\xef\xbb\xbf{"model": "small-1"}',
                headers={"x-api-key": key, "content-type": "application/json"},
            )
            assert (invalid.status_code, invalid.json()["error"]["code"]) == (400, "invalid_json")
            assert "byte order mark (BOM) is not supported: line 1 column 1" in invalid.text
        compressed = ask("/v1/rerank", "small-1", **{"content-encoding": "br"})
        assert compressed.status_code in (200, 403)
        assert httpx.get(f"{url}/v1/models", headers={"x-api-key": key}).status_code == 200
        set_limits(found, "one", {"models": (), "expires": time.time() + 3600})
        until(lambda: ask("/v1/chat/completions", "large").status_code == 200)
        set_limits(found, "one", {"expires": time.time() - 1})
        until(lambda: ask("/v1/chat/completions", "large").status_code == 401)
        error = ask("/v1/chat/completions", "large").json()["error"]
        assert "the API key of the client one has expired" in error["message"]
        # A new key would be rejected, too.
        assert "kvproxy keys set one --expires DATE" in error["message"]
        assert "rotate" not in error["message"]
        rotated = kvproxy("keys", "rotate", "one", "--data", tmp_path)
        assert "one has expired, so its new key is rejected: kvproxy keys set one --expires DATE" in rotated.stderr
        unknown = httpx.get(f"{url}/v1/models", headers={"x-api-key": "unknown"})
        assert "does not know the given API key: check it" in unknown.json()["error"]["message"]


def test_a_client_is_disabled_and_enabled(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_authentication, "_CHECK_SECONDS", 0.0)
    found = settings(tmp_path, recorder.url)
    key = add_client(found, "one", requests_per_minute=100)
    with run_proxy(found) as (url, services):
        assert post(url, x_api_key=key).status_code == 200
        assert kvproxy("keys", "disable", "one", "--data", tmp_path).returncode == 0
        for path in ("/v1/chat/completions", "/v1/files"):
            refused = post(url, path=path, x_api_key=key)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (403, "key_disabled")
            assert "the client one is disabled: ask the operator (kvproxy keys enable one)" in error["message"]
        assert 'kvproxy_client_requests_total{client="one",status="403"} 2.0' in services.metrics.render().decode()
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client,
            pytest.raises(openai.PermissionDeniedError, match="is disabled"),
        ):
            client.chat.completions.create(**chat())
        (listed,) = json.loads(kvproxy("keys", "ls", "--json", "--data", tmp_path).stdout)
        assert (listed["disabled"], listed["requests_per_minute"]) == (True, 100)
        assert kvproxy("keys", "disable", "one", "--data", tmp_path).returncode == 2
        assert kvproxy("keys", "enable", "one", "--data", tmp_path).returncode == 0
        # Its stored responses are there.
        assert post(url, x_api_key=key).headers["cache-status"].startswith("kvproxy; hit")
    assert kvproxy("keys", "disable", "nobody", "--data", tmp_path).returncode == 3
    changes = json.loads(kvproxy("keys", "history", "--json", "--data", tmp_path).stdout)
    assert [each["change"] for each in changes][:2] == ["enable client one", "disable client one"]


def test_a_client_is_disabled_on_a_full_disk(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_authentication, "_CHECK_SECONDS", 0.0)
    found = settings(tmp_path, recorder.url)
    key = add_client(found, "one")

    def fail(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with run_proxy(found) as (url, services):
        with monkeypatch.context() as full:
            full.setattr("kvproxy.clients.stored_clients.private_replacement", fail)
            for disabled, status in ((True, 403), (False, 200), (True, 403)):
                done = kvproxy("keys", "disable" if disabled else "enable", "one", "--url", url)
                assert done.returncode == 0
                assert ("only this proxy was changed" in done.stderr) == disabled
                assert post(url, x_api_key=key).status_code == status
            services.clients.store_switches()
            assert not all_clients(found)[0].disabled
            assert result("keys", "ls", "--url", url)[0]["disabled"]
        services.clients.store_switches()
        assert all_clients(found)[0].disabled
        assert post(url, x_api_key=key).status_code == 403
        assert kvproxy("keys", "enable", "one", "--url", url).returncode == 0
        assert post(url, x_api_key=key).status_code == 200


def test_keys_of_many_clients_their_usage_and_their_history(tmp_path: Path, recorder: Recorder) -> None:
    teams = tmp_path / "teams.csv"
    teams.write_text("name,tokens_per_minute,models,expires,stored_bytes\na,1000,small-*,90d,2GiB\nb,,,,\n")
    data = tmp_path / "data"
    done = kvproxy("keys", "add-many", teams, "--data", data)
    assert (done.returncode, "the first clients" in done.stderr) == (0, True)
    head, *rows = done.stdout.splitlines()
    keys = dict(row.split(",") for row in rows)
    assert (head, list(keys)) == ("name,key", ["a", "b"])
    unserved = tmp_path / "unserved.csv"
    unserved.write_text("name,models\nx,big\ny,bog\n")
    (tmp_path / "kvproxy.toml").write_text('[[upstreams]]\nurl = "http://127.0.0.1:9"\nmodels = ["big"]\n')
    done = kvproxy("keys", "add-many", unserved, "--data", tmp_path)
    assert (done.returncode, done.stderr.count("no model of an upstream")) == (0, 1)
    assert "the client y may use bog, which matches no model of an upstream: did you mean big?" in done.stderr
    for text, message in [
        ("name\na\n", "there is a client 'a' already"),
        ("name\nc\nc\n", "'c' is named twice"),
        ("name\nc\n-\n", "is no name for a client"),
        ("name,quota\nc,1\n", "unknown column 'quota': the columns are name, requests_per_minute"),
        ("name,tokens_per_minute\nc,many\n", "line 2: "),
        ("name,expires\nc,2020-01-01\n", "is in the past"),
        ("name,models\n,x\n", "the name is missing"),
        ("name,models\nc,x,y\n", "line 2: more values than columns"),
        ("name,models\nc,big;small\n", "line 2: 'big;small' has ';', which no model has: separate models by commas"),
        ("name\n", "there is no client after the first line"),
    ]:
        teams.write_text(text)
        done = kvproxy("keys", "add-many", teams, "--data", data)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    found = settings(data, recorder.url, journal={"prices": {"m": {"input": 1_000_000.0, "output": 1_000_000.0}}})
    assert [each.name for each in all_clients(found)] == ["a", "b"]
    with run_proxy(found) as (url, services):
        for _ in range(2):
            assert post(url, authorization=f"Bearer {keys['b']}", cache_control="confirm").status_code == 200
        services.journal.latest(1)
        first, second = list_clients(found)
        assert (first.tokens_per_minute, first.stored_bytes, first.models) == (1000, 2 * 2**30, "small-*")
        assert first.expires == pytest.approx(time.time() + 90 * 86_400, abs=600)
        assert (first.requests, first.tokens, first.spent, first.last_used) == (0, 0, None, None)
        (record,) = (each for each in services.journal.latest(2) if each.layer != "exact")
        assert second.requests == 2
        # The upstream reports no usage.
        estimated = record.estimated_prompt_tokens, record.estimated_completion_tokens
        assert second.tokens == sum(count or 0 for count in estimated) > 0
        assert second.spent == pytest.approx(second.tokens)
        with pytest.raises(InvalidRequest, match="is in the future"):
            list_clients(found, ClientUsageQuery(since=datetime.now() + timedelta(days=2)))
    assert kvproxy("keys", "set", "a", "--unlimited", "models,expires", "--data", data).returncode == 0
    assert (all_clients(found)[0].models, all_clients(found)[0].expires) == ((), None)
    remove_client(found, "b")
    changes = json.loads(kvproxy("keys", "history", "--json", "--data", data).stdout)
    added, _, limits = changes[-1]["change"].partition(": ")
    assert (changes[-2]["change"], added, limits.startswith("tokens_per_minute 1000, ")) == (
        "add client b",
        "add client a",
        True,
    )
    assert [each["change"].split(":")[0] for each in changes][:2] == ["remove client b", "set limits of client a"]
    assert stat.S_IMODE((data / "changes.jsonl").stat().st_mode) == 0o600


def test_no_change_is_lost_while_old_ones_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "_MAX_BYTES", 200)
    replace, started = change_log.replace_private_file, []

    def append_and_replace(file: Path, content: bytes) -> None:
        if not started:
            started.append(threading.Thread(target=change_log.record_change, args=(tmp_path, "me", "meanwhile")))
            started[0].start()
            # Without a lock, it would append to the file that is being replaced.
            started[0].join(0.5)
        replace(file, content)

    monkeypatch.setattr(change_log, "replace_private_file", append_and_replace)
    while not started:
        change_log.record_change(tmp_path, "me", "before")
    started[0].join()
    assert change_log.recorded_changes(tmp_path, 1)[0]["change"] == "meanwhile"


def test_the_list_of_clients_needs_no_current_journal(tmp_path: Path) -> None:
    found = load_settings(data=tmp_path)
    add_client(found, "one")
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        for table in TABLES:
            connection.execute(table)
        connection.execute(view_sql())
        connection.execute("alter table totals drop column unreported")
    done = kvproxy("keys", "ls", "--data", tmp_path)
    assert (done.returncode, "one" in done.stdout) == (0, True)
    assert "the usage is unknown: an older version wrote the journal" in done.stderr
    assert list_clients(found)[0].requests is None


def test_the_file_of_changes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "_MAX_BYTES", 10_000)
    monkeypatch.setattr(change_log, "MAX_CHANGES", 50)
    for number in range(300):
        change_log.record_change(tmp_path, "me", f"change {number}")
    assert change_log.changes_file(tmp_path).stat().st_size < 20_000
    with change_log.changes_file(tmp_path).open("ab") as file:
        file.write(b'{"changed": 1')
    newest = change_log.recorded_changes(tmp_path, 2)
    assert [each["change"] for each in newest] == ["change 299"]
