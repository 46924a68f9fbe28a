"""Reported reuse of streams and whole responses is counted by upstream and model."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvproxy.apis.reported_usage import ReuseReader
from kvproxy.apis.sse import EventReader, event
from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_app, run_proxy

DELTA: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "ok"}}]}
END: dict[str, Any] = {**DELTA, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
START = {
    "type": "message_start",
    "message": {"content": [], "usage": {"input_tokens": 4, "cache_read_input_tokens": 90}},
}
READ = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 8}}
STREAMS: dict[str, tuple[str, list[bytes], tuple[int, int] | None]] = {
    "openai": (
        "/v1/chat/completions",
        [
            event(DELTA),
            event(END),
            event({**DELTA, "choices": [], "usage": {"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": 64}}}),
            event(b"[DONE]"),
        ],
        (70, 64),
    ),
    "continuous": (
        "/v1/completions",
        [
            event({**DELTA, "usage": {"prompt_tokens": 70, "completion_tokens": 0}}),
            event({**END, "usage": {"prompt_tokens": 70, "prompt_cache_hit_tokens": 32}}),
            event(b"[DONE]"),
        ],
        (70, 32),
    ),
    "llama": (
        "/v1/chat/completions",
        [event(DELTA), event({**END, "timings": {"cache_n": 90, "prompt_n": 10}}), event(b"[DONE]")],
        (100, 90),
    ),
    "anthropic": (
        "/v1/messages",
        [
            event(START, "message_start"),
            event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3}}, "message_delta"),
            event({"type": "message_stop"}, "message_stop"),
        ],
        (94, 90),
    ),
    "later": (
        "/v1/messages",
        [
            event({"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 94}}}, "message_start"),
            event({"type": "message_delta", "delta": {}, "usage": {"input_tokens": 4, "cache_read_input_tokens": 90}}),
            event({"type": "message_stop"}, "message_stop"),
        ],
        (94, 90),
    ),
    "responses": (
        "/v1/responses",
        [event({"type": "response.completed", "response": {"usage": READ}})],
        (9, 8),
    ),
    "silent": ("/v1/chat/completions", [event(DELTA), event(END), event(b"[DONE]")], None),
}  # fmt: skip


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    async def answer(request: Request) -> Response:
        body = await request.json()
        parts = STREAMS[body["model"]][1]
        if not body.get("stream"):
            return JSONResponse({"usage": {"prompt_tokens": 5, "prompt_cache_hit_tokens": 5}})

        async def events() -> AsyncIterator[bytes]:
            # Chunks that split events.
            whole = b"".join(parts)
            for start in range(0, len(whole), 37):
                yield whole[start : start + 37]

        return StreamingResponse(events(), media_type="text/event-stream")

    app = Starlette(routes=[Route(path, answer, methods=["POST"]) for path in {each[0] for each in STREAMS.values()}])
    data: Path = tmp_path_factory.mktemp("reported")
    with run_app(app) as upstream:
        settings = load_settings(data=data, upstream=upstream, cache={"semantic": False, "max_response_bytes": 60})
        with run_proxy(settings) as (url, _):
            yield url


def counted(url: str, model: str) -> dict[str, int] | None:
    (status,) = httpx.get(f"{url}/admin/upstreams").raise_for_status().json()
    found: dict[str, int] | None = status["reuse"].get(model)
    return found


@pytest.mark.parametrize("model", STREAMS)
@pytest.mark.parametrize("control", ["no-store", "no-cache"], ids=["passes", "too large to keep"])
def test_every_stream_is_counted_at_its_end(proxy: str, model: str, control: str) -> None:
    path, _, told = STREAMS[model]
    before = counted(proxy, model) or {"reports": 0, "prompt_tokens": 0, "cached_tokens": 0}
    body = {"model": model, "messages": [{"role": "user", "content": "?"}], "prompt": "?", "input": "?", "stream": True}
    body |= {"max_tokens": 3}
    with httpx.stream("POST", proxy + path, json=body, headers={"cache-control": control}) as response:
        assert b"".join(response.iter_raw()) == b"".join(STREAMS[model][1])
    if told is None:
        assert counted(proxy, model) is None
        return
    # The client may receive the body before the proxy counts it.
    until(lambda: (counted(proxy, model) or before)["reports"] > before["reports"])
    after = counted(proxy, model)
    assert after is not None
    new = {name: after[name] - before[name] for name in before}
    assert new == {"reports": 1, "prompt_tokens": told[0], "cached_tokens": told[1]} | {
        name: 0 for name in new if name not in ("reports", "prompt_tokens", "cached_tokens")
    }
    labels = f'model="{model}"'
    assert f"kvproxy_reported_reuse_cached_tokens_total{{{labels},upstream=" in httpx.get(f"{proxy}/metrics").text


def test_the_number_of_reported_models_is_bounded(proxy: str) -> None:
    with httpx.Client(base_url=proxy) as client:
        for number in range(80):
            STREAMS[f"made up {number}"] = STREAMS["openai"]
            body = {"model": f"made up {number}", "messages": [{"role": "user", "content": "?"}]}
            client.post("/v1/chat/completions", json=body).raise_for_status()
        (status,) = client.get("/admin/upstreams").json()
    assert len(status["reuse"]) <= 65
    assert status["reuse"]["others"]["reports"] > 0


def test_invalid_json_is_ignored() -> None:
    reader = ReuseReader()
    for each in EventReader().push(b'data: {"usage"\n\ndata: "usage"\n\ndata: {"usage": 3, "timings": [1]}\n\n'):
        reader.push(each)
    assert reader.reuse is None
