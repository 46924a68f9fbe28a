"""Requests and responses pass unchanged and without delay, and without the keys of other parties."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.http.conftest import PROBES
from tests.servers import run_connections, run_front, run_upstream
from tests.statuses import makes_entry

VECTORS: dict[str, Any] = {"object": "list", "model": "e", "data": [{"index": 0, "embedding": [0.1, 0.25]}]}


class Recorder:
    """A server that notes every request and answers in the simplest way."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[tuple[str, str]], bytes]] = []

    async def any(self, request: Request) -> Response:
        raw = await request.body()
        target = request.scope["raw_path"] + b"?" + request.scope["query_string"]
        if request.url.path not in PROBES:
            self.seen.append((target.decode(), request.headers.items(), raw))
        if request.url.path == "/v1/embeddings":
            given = json.loads(raw)["input"]
            count = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1
            data = [{**VECTORS["data"][0], "index": index} for index in range(count)]
            return JSONResponse({**VECTORS, "data": data}, headers={"set-cookie": "session=1"})
        return Response(b"\x00\xff" * 10, 418, {"x-answer": "1", "content-encoding": "unknown", "vary": "a"})

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.seen[-1][1])


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def target(recorder: Recorder) -> Iterator[str]:
    with run_upstream(recorder.any) as url:
        yield url


@pytest.fixture(scope="module")
def proxy(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("transparent")
    with run_front(data, target) as (url, _):
        yield url


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_any_method_route_header_and_body_pass_unchanged(proxy: str, recorder: Recorder, method: str) -> None:
    body = b"\x00\x01 not json" if method in ("POST", "PUT", "PATCH") else b""
    headers = [("x-one", "a"), ("x-one", "b"), ("accept-encoding", "br"), ("cache-control", "no-store"), ("te", "gzip")]
    with httpx.Client(headers={"user-agent": "me"}) as client:
        answer = client.request(method, f"{proxy}/v1/audio/any%2Fthing?a=1&a=%20", content=body, headers=headers)
    path, sent, raw = recorder.seen[-1]
    assert path == "/v1/audio/any%2Fthing?a=1&a=%20"
    assert raw == body
    assert [value for name, value in sent if name == "x-one"] == ["a", "b"]
    named = dict(sent)
    assert (named["user-agent"], named["accept-encoding"], named["cache-control"]) == ("me", "br", "no-store")
    assert "te" not in named
    assert "content-type" not in named
    assert (answer.status_code, answer.headers["x-answer"], answer.headers["vary"]) == (418, "1", "a")
    assert answer.headers["content-length"] == "20"
    assert answer.content == b"\x00\xff" * 10


def test_head_keeps_the_length_of_what_it_does_not_send(proxy: str) -> None:
    answer = httpx.head(f"{proxy}/v1/files/x")
    assert (answer.headers["content-length"], answer.content) == ("20", b"")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each part of an upload as soon as it is there."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"POST"):
        # The proxy looks at its upstreams by itself.
        return
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while size := int(await reader.readuntil(b"\r\n"), 16):
        part = (await reader.readexactly(size + 2))[:-2]
        writer.write(b"%x\r\n%s\r\n" % (size, part.upper()))
    writer.write(b"0\r\n\r\n")


async def test_an_upload_is_answered_while_it_goes_on(tmp_path: Path) -> None:
    with run_connections(echo) as target, run_front(tmp_path, target) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        async with asyncio.timeout(60):
            for word in (b"one", b"two", b"three"):
                writer.write(b"%x\r\n%s\r\n" % (len(word), word))
                # The next part is sent only after this one has come back.
                await reader.readuntil(word.upper())
            writer.write(b"0\r\n\r\n")
            await reader.readuntil(b"0\r\n\r\n")
        writer.close()


@pytest.mark.parametrize("given", ["a text", ["a", "batch"], [1, 2, 3], [[1, 2], [3]]])
def test_embeddings_are_cached_exactly(proxy: str, recorder: Recorder, given: Any) -> None:
    body = {"model": "e", "input": given, "encoding_format": "float"}
    first = httpx.post(f"{proxy}/v1/embeddings", json=body)
    count = len(recorder.seen)
    again = httpx.post(f"{proxy}/v1/embeddings", json=body | {"user": "someone"})
    assert first.json() == again.json()
    assert first.json().keys() == VECTORS.keys()
    # An array makes an entry of each input.
    makes_several = isinstance(given[0], list) or given == ["a", "batch"]
    status = first.headers["cache-status"]
    assert 'detail="inputs 0/2"' in status if makes_several else makes_entry(status)
    assert "hit" in again.headers["cache-status"]
    assert len(recorder.seen) == count
    httpx.post(f"{proxy}/v1/embeddings", json=body | {"dimensions": 2})
    assert len(recorder.seen) == count + 1
    # The cookie that came with an answer is its client's.
    assert "cookie" not in recorder.headers


def test_a_configured_key_replaces_the_clients_and_none_is_logged(
    target: str, recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with run_front(tmp_path, target, forward={"api_key": "configured"}) as (url, _):
        for path, sent, expected in (
            ("/v1/embeddings", {"authorization": "Bearer mine"}, {"authorization": "Bearer configured"}),
            ("/v1/embeddings", {}, {"authorization": "Bearer configured"}),
            ("/v1/messages", {"x-api-key": "mine"}, {"x-api-key": "configured"}),
            ("/v1/messages/count_tokens", {}, {"x-api-key": "configured"}),
            ("/v1/rerank", {"api-key": "mine"}, {"api-key": "configured"}),
        ):
            httpx.post(f"{url}{path}", json={"model": "m", "input": path + str(sent)}, headers=sent)
            keys = {name: value for name, value in recorder.headers.items() if "key" in name or "auth" in name}
            assert keys == expected
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert not any("configured" in text or "mine" in text for text in ours)


def test_a_request_is_tried_again_only_while_nothing_was_sent(tmp_path: Path) -> None:
    tries = []

    async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(await reader.readuntil(b"\r\n\r\n"))

    with (
        run_connections(close_at_once) as upstream,
        run_front(tmp_path, upstream, forward={"retries": 5}) as (proxy, _),
    ):
        answer = httpx.post(f"{proxy}/v1/embeddings", json={"model": "e", "input": "x"})
    assert answer.status_code == 502
    assert len([head for head in tries if b"/v1/embeddings" in head]) == 1
