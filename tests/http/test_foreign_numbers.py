"""Impossible numbers in responses of an upstream: in `usage`, in cache directives, and in JSON."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from kvproxy.clients.client_keys import add_client, remove_client, reset_counts
from kvproxy.http.services import Services
from kvproxy.journal.journal import StoredJournal
from tests.requests import chat
from tests.servers import run_front, run_upstream, until_stored

ANSWER: dict[str, Any] = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}
USAGES: dict[str, Any] = {
    "huge": {"prompt_tokens": 2**53 - 1, "completion_tokens": 2**53 - 1},
    "beyond-64-bits": {"prompt_tokens": 10**30, "completion_tokens": 1},
    "negative": {"prompt_tokens": -5, "completion_tokens": -10_000},
    "fraction": {"prompt_tokens": 1.5e300, "completion_tokens": 1},
    "more-than-was-sent": {"prompt_tokens": 30_000_000, "completion_tokens": 30_000_000},
    "more-cached-than-was-sent": {
        "prompt_tokens": 30_000_000,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 29_000_000},
    },
    "contradictory": {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}},
}
MAX_AGES = {"1e300": 10 * 365 * 86_400, "9" * 400: 10 * 365 * 86_400, "60": 60, "-1": 86_400, "inf": 86_400}
NESTED = json.loads("[" * 500 + "]" * 500)


async def answer(request: Request) -> Response:
    if request.method != "POST":
        return Response()
    model = (await request.json())["model"]
    headers, body = {"content-type": "application/json"}, ANSWER
    if model in USAGES and (await request.json()).get("stream"):
        # A stream without an end is not stored, but its usage is read.
        chunk = {"object": "chat.completion.chunk", "choices": [], "usage": USAGES[model]}
        return Response(f"data: {json.dumps(chunk)}\n\n", headers={"content-type": "text/event-stream"})
    if model in USAGES:
        body = ANSWER | {"usage": USAGES[model]}
    elif model in MAX_AGES:
        headers["cache-control"] = f"max-age={model}"
    elif model == "long integer":
        body = ANSWER | {"seed": 10**30}
    elif model == "nested":
        body = ANSWER | {"vendor": NESTED}
    return Response(json.dumps(body), headers=headers)


Running = tuple[httpx.Client, Services]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with (
        run_upstream(answer) as upstream,
        run_front(tmp_path_factory.mktemp("numbers"), upstream) as (url, services),
        httpx.Client(base_url=url, timeout=300) as client,
    ):
        yield client, services


def ask(client: httpx.Client, model: str, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    return client.post(path, json=chat(model=model, **fields))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/rerank"])
@pytest.mark.parametrize("model", USAGES)
def test_no_usage_blocks_a_client_for_more_than_an_hour(tmp_path: Path, model: str, path: str) -> None:
    with run_upstream(answer) as upstream, run_front(tmp_path, upstream) as (url, services):
        headers = {"authorization": f"Bearer {add_client(services.settings, 'bob', tokens_per_minute=1000)}"}
        with httpx.Client(base_url=url, timeout=300, headers=headers) as client:
            services.clients.reload()
            assert ask(client, model, path).status_code == 200
            second = ask(client, "another", path)
            # The impossible usage counts as unknown, and the estimate applies.
            assert second.status_code == 200
            assert 800 < int(second.headers["x-ratelimit-remaining-tokens"]) <= 1000
        assert "kvproxy_client_tokens_total" in services.metrics.render().decode()


def test_a_debt_ends_after_an_hour_with_the_client_or_by_a_reset(tmp_path: Path) -> None:
    with run_upstream(answer) as upstream, run_front(tmp_path, upstream) as (url, services):
        settings = services.settings

        def status(key: str) -> httpx.Response:
            services.clients.reload()
            return httpx.post(f"{url}/v1/rerank", json=chat("?"), headers={"authorization": f"Bearer {key}"})

        def overdraw(key: str) -> None:
            client = services.clients.identify([("authorization", f"Bearer {key}")])
            assert client is not None
            bucket = services.quotas.get(client).tokens
            assert bucket is not None
            bucket.charge(10**9)
            assert 3600 <= int(status(key).headers["retry-after"]) <= 3660

        key = add_client(settings, "bob", tokens_per_minute=1000)
        assert status(key).status_code == 200
        overdraw(key)
        reset_counts(settings, "bob")
        assert status(key).status_code == 200
        overdraw(key)
        remove_client(settings, "bob")
        assert status(key).status_code == 401
        assert status(add_client(settings, "bob", tokens_per_minute=1000)).status_code == 200


def test_an_impossible_usage_is_unknown_and_logged_once(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    client, services = running
    with caplog.at_level(logging.WARNING, "kvproxy"):
        for model in USAGES:
            ask(client, model, messages=[{"role": "user", "content": "log"}])
    assert caplog.text.count("impossible usage") == 1
    assert isinstance(services.journal, StoredJournal)
    until_stored(services)
    records = {record.model: record for record in services.journal.latest(20)}
    for model in USAGES:
        assert records[model].completion_tokens in (None, 0, 1)
        assert records[model].reused_tokens is None
    assert "Traceback" not in caplog.text


def test_an_impossible_usage_is_unknown_in_stored_responses_and_in_streams_that_are_not_stored(
    running: Running,
) -> None:
    client, services = running
    for model in USAGES:
        ask(client, model, messages=[{"role": "user", "content": "stored"}])
        ask(client, model, messages=[{"role": "user", "content": "cut"}], stream=True)
    until_stored(services)
    assert isinstance(services.journal, StoredJournal)
    for record in services.journal.latest(2 * len(USAGES)):
        assert record.reused_tokens is None, record.model
        assert (record.prompt_tokens or 0) < 10**6, record.model
    stored = {entry.model: entry for entry in services.cache.store.list_entries(limit=100)}
    for model in USAGES:
        assert (stored[model].prompt_tokens or 0) < 10**6, model
        assert (stored[model].completion_tokens or 0) < 10**6, model


def test_a_stream_with_a_length_ends_without_the_usage_that_its_client_did_not_request(running: Running) -> None:
    client, _ = running
    streamed = ask(client, "huge", messages=[{"role": "user", "content": "length"}], stream=True)
    assert (streamed.status_code, streamed.content) == (200, b"")


@pytest.mark.parametrize("max_age", MAX_AGES)
def test_durations_are_at_most_ten_years(running: Running, max_age: str) -> None:
    client, services = running
    ask(client, max_age)
    until_stored(services)
    status = ask(client, max_age).headers["cache-status"]
    ttl = int(status.partition("ttl=")[2].partition(";")[0])
    assert MAX_AGES[max_age] - 60 <= ttl <= MAX_AGES[max_age]


def test_durations_of_requests_are_at_most_ten_years(running: Running) -> None:
    client, services = running
    headers = {"x-kvproxy-ttl": "9" * 300, "cache-control": "max-age=1e300, stale-if-error=" + "9" * 350}
    headers["cache-control"] = f"max-age={'9' * 300}, stale-if-error={'9' * 350}"
    headers["x-kvproxy-timeout"] = "9" * 300
    for _ in range(2):
        assert client.post("/v1/chat/completions", json=chat("ttl"), headers=headers).status_code == 200
        until_stored(services)


@pytest.mark.parametrize("model", ["long integer", "nested"])
def test_a_response_with_unusual_json_replays_to_a_stream(
    running: Running, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    client, services = running
    whole = ask(client, model)
    until_stored(services)
    streamed = ask(client, model, stream=True)
    assert "; hit" in streamed.headers["cache-status"]
    first = json.loads(streamed.text.partition("data: ")[2].partition("\n")[0])
    for field in ("seed", "vendor"):
        assert first.get(field) == whole.json().get(field)
    assert "Traceback" not in caplog.text
