"""Compressed bodies, base URLs without `/v1` or with two, WebSocket offers, and the ids that Anthropic's SDKs read."""

import gzip
import json
import logging
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anthropic
import brotli
import httpx
import openai
import pytest
import zstandard

from kvproxy.errors import InvalidRequest
from kvproxy.http.content_encoding import codings_of, decode
from kvproxy.http.services import Services
from tests.http.conftest import Recorder
from tests.requests import chat
from tests.servers import run_front

ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    # The default quality takes seconds for a large body.
    "br": partial(brotli.compress, quality=1),
    "zstd": zstandard.compress,
}
LIMIT = 2**20


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


@pytest.fixture(scope="module")
def proxied(recording: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Services]]:
    limits = {"body_bytes": LIMIT}
    with run_front(tmp_path_factory.mktemp("encodings"), recording.url, limits=limits) as running:
        yield running


def send(url: str, body: bytes, encoding: str, path: str = "/v1/chat/completions") -> httpx.Response:
    return httpx.post(url + path, content=body, headers={"content-encoding": encoding}, timeout=300)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_compressed_request_is_read_and_forwarded_decoded(
    name: str, proxied: tuple[str, Services], recorder: Recorder
) -> None:
    body = json.dumps(chat(f"compressed {name} " + "word " * 9_000)).encode()
    first = send(proxied[0], ENCODERS[name](body), name)
    assert "fwd=uri-miss" in first.headers["cache-status"]
    [(_, _, received)], [headers] = recorder.requests, recorder.headers
    assert received == body
    assert headers["content-length"] == str(len(body))
    assert "content-encoding" not in headers
    # An uncompressed request is equal.
    assert "hit" in httpx.post(f"{proxied[0]}/v1/chat/completions", content=body).headers["cache-status"]


@pytest.mark.parametrize("name", ENCODERS)
def test_a_body_that_decodes_to_more_than_the_limit_is_refused(
    name: str, proxied: tuple[str, Services], recorder: Recorder
) -> None:
    url, services = proxied
    bomb = ENCODERS[name](b" " * (64 * LIMIT))
    assert len(bomb) < LIMIT / 8
    reply = send(url, bomb, name)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
    assert "limits.body_bytes" in reply.json()["error"]["message"]
    assert recorder.requests == []
    assert services.bodies.bytes == services.bodies.items == 0


def test_an_unknown_coding_gets_the_known_ones(proxied: tuple[str, Services], demo: tuple[str, Services]) -> None:
    for url in (proxied[0], demo[0]):
        reply = send(url, b"{}", "lz4")
        assert reply.status_code == 415
        assert reply.headers["accept-encoding"] == "gzip, deflate, br, zstd"
        assert "send gzip, deflate, br, zstd, or the body uncompressed" in reply.json()["error"]["message"]


def test_an_upstream_judges_an_invalid_body_and_the_engine_refuses_it(
    proxied: tuple[str, Services], demo: tuple[str, Services], recorder: Recorder
) -> None:
    broken = gzip.compress(b"{}")[:-4]
    assert send(proxied[0], broken, "gzip").headers["cache-status"] == "kvproxy; fwd=bypass"
    assert recorder.requests[0][2] == broken
    assert recorder.headers[0]["content-encoding"] == "gzip"
    reply = send(demo[0], broken, "gzip")
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "the body is not valid gzip: it ends early"
    body = json.dumps(chat("hi", model="demo", max_tokens=1)).encode()
    assert send(demo[0], zstandard.compress(body), "zstd").status_code == 200


@pytest.mark.parametrize("parts", [1, 7, 10**9])
def test_codings_in_any_parts_and_order(parts: int) -> None:
    data = bytes(range(256)) * 3_000
    encoded = {
        **{name: [name] for name in ENCODERS},
        "gzip, br": ["gzip", "br"],
        "identity, x-gzip": ["gzip"],
        "": [],
    }
    for header, names in encoded.items():
        body = data
        for name in names:
            body = ENCODERS[name](body)
        chunks = [body[start : start + parts] for start in range(0, min(len(body), 2_000 * parts), parts)]
        if sum(map(len, chunks)) == len(body):
            assert b"".join(decode(chunks, codings_of([header]))) == data
    assert b"".join(decode([raw_deflate(data)], ["deflate"])) == data
    for name, encode in ENCODERS.items():
        if name in ("gzip", "zstd"):
            assert b"".join(decode([encode(data) + encode(b"more")], [name])) == data + b"more"
        for damaged in (encode(data)[:-3], b"nonsense"):
            with pytest.raises(InvalidRequest, match=f"not valid {name}"):
                list(decode([damaged], [name]))


def test_paths_without_v1_and_with_two_are_cached(proxied: tuple[str, Services], recorder: Recorder) -> None:
    url, _ = proxied
    for base in (url, f"{url}/v1/v1", f"{url}/v1"):
        with openai.OpenAI(base_url=base, api_key="k", max_retries=0) as client:
            raw = client.chat.completions.with_raw_response.create(
                model="m", messages=[{"role": "user", "content": "which path"}]
            )
        assert ("hit" in raw.headers["cache-status"]) == (base != url)
    # An upstream such as LiteLLM or Perplexity serves the path that the client sent.
    assert [path for _, path, _ in recorder.requests] == ["/chat/completions"]
    for path in ("/v1/v1/embeddings", "/v1/embeddings", "/embeddings"):
        httpx.post(url + path, json={"model": "m", "input": "x"})
    httpx.get(f"{url}/v1/v1/files")
    # Servers such as llama.cpp answer /embeddings in another format.
    paths = ["/v1/embeddings", "/v1/embeddings", "/embeddings", "/v1/files"]
    assert [path for _, path, _ in recorder.requests[1:]] == paths


def test_the_engine_serves_paths_without_v1(demo: tuple[str, Services]) -> None:
    body = chat("hi", model="demo", max_tokens=1)
    for path in ("/chat/completions", "/v1/v1/chat/completions", "/messages", "/v1/v1/messages/count_tokens"):
        assert httpx.post(demo[0] + path, json=body).status_code == 200, path
    assert httpx.get(f"{demo[0]}/models").status_code == 200


def test_an_unread_path_that_ends_like_a_cached_one_is_logged_once(
    proxied: tuple[str, Services], caplog: pytest.LogCaptureFixture
) -> None:
    url, _ = proxied
    with caplog.at_level(logging.WARNING, logger="kvproxy"):
        for _ in range(3):
            httpx.post(f"{url}/openai/deployments/gpt/chat/completions", json=chat())
            httpx.post(f"{url}/v1/threads/t/messages", json={})
    [warning] = [
        record.getMessage() for record in caplog.records if "is forwarded, and not cached" in record.getMessage()
    ]
    assert "/openai/deployments/gpt/chat/completions" in warning
    assert warning.endswith(f"{url}/v1")


def test_errors_and_hits_of_messages_have_the_ids_that_anthropics_sdk_reads(demo: tuple[str, Services]) -> None:
    with anthropic.Anthropic(base_url=demo[0], api_key="k", max_retries=0) as client:
        for _ in range(2):
            message = client.messages.create(model="demo", max_tokens=1, messages=[{"role": "user", "content": "id"}])
            assert message._request_id
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(model="demo", max_tokens=0, messages=[{"role": "user", "content": "id"}])
    assert caught.value.request_id
    assert caught.value.request_id == caught.value.body["request_id"]  # type: ignore[index]
    for path in ("/v1/messages", "/v1/messages/nothing"):
        reply = httpx.post(demo[0] + path, content=b"{")
        assert reply.headers["request-id"] == reply.headers["x-request-id"] == reply.json()["request_id"]
    assert "request-id" not in httpx.get(f"{demo[0]}/v1/models").headers


def test_the_id_of_the_upstream_is_kept(tmp_path: Path) -> None:
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

    from tests.servers import run_upstream

    async def answer(request: Request) -> Response:
        return JSONResponse({"type": "error"}, 529, headers={"request-id": "req_1"})

    with run_upstream(answer) as upstream, run_front(tmp_path, upstream) as (url, _):
        reply = httpx.post(f"{url}/v1/messages", json=chat())
        assert reply.headers.get_list("request-id") == ["req_1"]
