"""Reported reuse of streams and whole responses is counted by upstream and model."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.apis.sse import encode_event as event
from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_proxy, run_upstream

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
DELTA: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "ok"}}]}
END: dict[str, Any] = {**DELTA, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = {**DELTA, "choices": [], "usage": {"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": 64}}}
START = {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 94}}}
LATER = {"type": "message_delta", "delta": {}, "usage": {"input_tokens": 4, "cache_read_input_tokens": 90}}
# tests/apis/test_reported_usage.py has the formats of all servers.
STREAMS: dict[str, tuple[str, list[bytes], tuple[int, int] | None]] = {
    "openai": (CHAT, [event(DELTA), event(END), event(USAGE), event(b"[DONE]")], (70, 64)),
    "anthropic": (MESSAGES, [event(START, "message_start"), event(LATER), event({"type": "message_stop"})], (94, 90)),
    "no usage": (CHAT, [event(DELTA), event(END), event(b"[DONE]")], None),
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    async def answer(request: Request) -> Response:
        if request.method != "POST":
            return Response()
        body = await request.json()
        if not body.get("stream"):
            return JSONResponse({"usage": {"prompt_tokens": 5, "prompt_cache_hit_tokens": 5}})

        async def events() -> AsyncIterator[bytes]:
            # Chunks that split events.
            whole = b"".join(STREAMS[body["model"]][1])
            for start in range(0, len(whole), 37):
                yield whole[start : start + 37]

        return StreamingResponse(events(), media_type="text/event-stream")

    with run_upstream(answer) as upstream:
        settings = load_settings(
            data=tmp_path_factory.mktemp("reported"),
            upstream=upstream,
            cache={"semantic": False, "max_response_bytes": 60},
        )
        with run_proxy(settings) as (url, _):
            yield url


def counted(url: str, model: str) -> dict[str, int]:
    (status,) = httpx.get(f"{url}/admin/upstreams").raise_for_status().json()
    return dict(status["reuse"].get(model, {"reports": 0, "prompt_tokens": 0, "cached_tokens": 0}))


@pytest.mark.parametrize("model", STREAMS)
@pytest.mark.parametrize("control", ["no-store", "no-cache"], ids=["passes", "too large to store"])
def test_every_stream_is_counted_at_its_end(proxy: str, model: str, control: str) -> None:
    path, events, usage = STREAMS[model]
    before = counted(proxy, model)
    body = {"model": model, "messages": [{"role": "user", "content": "?"}], "stream": True, "max_tokens": 3}
    with httpx.stream("POST", proxy + path, json=body, headers={"cache-control": control}) as response:
        assert b"".join(response.iter_raw()) == b"".join(events)
    if usage is None:
        assert counted(proxy, model) == before
        return
    # The client may receive the body before the proxy counts it.
    until(lambda: counted(proxy, model)["reports"] > before["reports"])
    new = {name: value - before.get(name, 0) for name, value in counted(proxy, model).items()}
    assert {name: value for name, value in new.items() if value} == {
        "reports": 1,
        "prompt_tokens": usage[0],
        "cached_tokens": usage[1],
    }
    metrics = httpx.get(f"{proxy}/metrics").text
    assert f'kvproxy_reported_reuse_cached_tokens_total{{model="{model}",upstream=' in metrics
