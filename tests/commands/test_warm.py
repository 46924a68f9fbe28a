"""Warming: what is read from a file, how fast it is sent, and what a cache gives to warm with."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.commands.warm_file import read_requests
from kvproxy.commands.warm_run import Pace, prefix_only, run
from kvproxy.errors import InvalidRequest
from kvproxy.settings import load_settings
from tests.commands.test_commands import kvproxy, result
from tests.servers import run_app, run_proxy


def said(question: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": question}]} | more


def lines(file: Path, *values: Any) -> Path:
    file.write_text("\n".join(map(json.dumps, values)))
    return file


def test_access_logs_are_read_by_frequency_and_without_what_failed(tmp_path: Path) -> None:
    log = lines(
        tmp_path / "log.jsonl",
        {"method": "POST", "path": "/v1/chat/completions?a=1", "status": 200, "body": said("once")},
        {"method": "post", "url": "http://host/v1/messages", "request": said("often", max_tokens=5), "response": {}},
        {"endpoint": "/v1/chat/completions", "status": 500, "request_body": said("failed")},
        {"method": "GET", "path": "/v1/models", "status": 200, "body": said("got")},
        {"path": "/v1/images", "status": 200, "body": {"prompt": "a picture"}},
        {"path": "/v1/messages", "request_body": json.dumps(said("often", max_tokens=5, stream=True))},
        {"route": "/v1/embeddings", "payload": {"model": "e", "input": ["a", "b"]}},
    )
    found = read_requests(log, "default", None)
    assert [(each.path, each.count, each.line) for each in found] == [
        ("/v1/messages", 2, 2),
        ("/v1/chat/completions", 1, 1),
        ("/v1/embeddings", 1, 7),
    ]
    assert [each.path for each in prefix_only(found)] == ["/v1/messages", "/v1/chat/completions"]
    assert {each.body["max_tokens"] for each in prefix_only(found)} == {1}


@pytest.mark.parametrize("value", [{"a": 1}, {"input": "where to?"}, {"body": {"a": 1}}, [1], {"body": 5}])
def test_what_is_no_request_is_named(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InvalidRequest, match="line 2"):
        read_requests(lines(tmp_path / "x.jsonl", said("a"), value), "m", None)


class Upstream:
    """Any server: it answers, and notes what it was asked and when."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str, str | None]] = []

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        question = body["messages"][-1]["content"]
        self.asked.append((time.monotonic(), question, request.headers.get("x-api-key")))
        choice = {"index": 0, "message": {"role": "assistant", "content": question}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(question), "completion_tokens": 1}
        return JSONResponse({"object": "chat.completion", "choices": [choice], "usage": usage})

    def app(self) -> Starlette:
        paths = ("/v1/chat/completions", "/v1/messages")
        return Starlette(routes=[Route(path, self.chat, methods=["POST"]) for path in paths])


def test_no_more_requests_a_second_than_allowed_and_keys_as_clients_send_them(tmp_path: Path) -> None:
    upstream = Upstream()
    values = [{"path": "/v1/messages", "body": said(f"q{number}")} for number in range(6)]
    requests = read_requests(lines(tmp_path / "x.jsonl", *values), "m", None)
    with run_app(upstream.app()) as url:
        began = time.monotonic()
        report = asyncio.run(run(requests, url, Pace(4, rate=20.0), "key"))
    assert report.outcomes["forwarded"] == 6
    # From the start, since a busy machine may deliver the first request late.
    assert max(moment for moment, _, _ in upstream.asked) - began >= 5 / 20
    assert {key for _, _, key in upstream.asked} == {"key"}


def test_the_most_valuable_entries_are_sent_again_or_elsewhere(tmp_path: Path) -> None:
    upstream, other = Upstream(), Upstream()
    with run_app(upstream.app()) as target, run_app(other.app()) as elsewhere:
        settings = load_settings(data=tmp_path, upstream=target, cache={"semantic": False})
        with run_proxy(settings) as (url, _), httpx.Client(base_url=url) as client:
            assert kvproxy("warm", "--cache", url=url).returncode == 3
            for question, times in (("once", 1), ("seldom", 2), ("a long question, often", 4), ("often", 4)):
                for _ in range(times):
                    client.post("/v1/chat/completions", json=said(question))
            upstream.asked.clear()
            sent = result("warm", "--cache", "--from", url, "--concurrency", 1, url=elsewhere)
            assert sent["computed_not_stored"] == 3
            assert [question for _, question, _ in other.asked][-1] == "seldom"
            fresh = result("warm", "--cache", "--top", 2, "--refresh", "--concurrency", 1, url=url)
            assert fresh["computed_and_stored"] == 2
            assert [question for _, question, _ in upstream.asked] == ["a long question, often", "often"]
    wrong = kvproxy("warm", url=url)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
