"""What equals a request of a moment ago is answered before it is read: nobody may notice, but for the time."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.clients import add_client
from kvproxy.flow.cached.again import Again
from kvproxy.flow.cached.keep import Asked
from kvproxy.flow.keys import cache_key
from kvproxy.http.repeats.memory import Bytes, Memory, Remembered, sent_bytes
from kvproxy.http.services import Services
from kvproxy.index.store.sqlite import ResponseStore
from kvproxy.journal.draft import Draft
from kvproxy.settings import load_settings
from tests.backends.fleets import until
from tests.index.entries import make_entry
from tests.requests import api_request
from tests.servers import run_app, run_proxy, until_stored

PATH = "/v1/chat/completions"
RULES = """
[cache]
semantic = false

[[rules]]
name = "never"
headers = { x-team = "sales" }
cache = false
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    numbers = itertools.count()

    async def answer(request: Request) -> Response:
        message = {"role": "assistant", "content": f"answer {next(numbers)}"}
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    with run_app(Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])) as url:
        yield url


@pytest.fixture
def proxy(upstream: str, tmp_path: Path) -> Iterator[tuple[httpx.Client, Services]]:
    (tmp_path / "kvproxy.toml").write_text("[cache]\nsemantic = false\n")
    with (
        run_proxy(load_settings(data=tmp_path, upstream=upstream)) as (url, services),
        httpx.Client(base_url=url) as client,
    ):
        yield client, services


def ask(client: httpx.Client, text: str = "Hi", body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    request = {"model": "m", "messages": [{"role": "user", "content": text}], **(body or {})}
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(PATH, json=request, headers=given).raise_for_status()


def status_of(response: httpx.Response) -> str:
    return response.headers["cache-status"]


def warm(client: httpx.Client, text: str = "Hi", **headers: str) -> httpx.Response:
    """The answer to a request that is remembered by now."""
    until(lambda: "; hit;" in status_of(ask(client, text, **headers)))
    return ask(client, text, **headers)


def test_it_is_answered_as_before(proxy: tuple[httpx.Client, Services]) -> None:
    client, _ = proxy
    warm(client)
    # A header that it has not had yet, so that it is read.
    read = ask(client, x_other="1")
    repeated, again = ask(client, x_other="1"), ask(client, x_other="1", x_request_id="mine")
    assert read.content == repeated.content == again.content
    passing = {"x-request-id", "date", "cache-status", "age"}
    for answer in (repeated, again):
        assert list(answer.headers) == list(read.headers)
        assert {name: answer.headers[name] for name in answer.headers if name not in passing} == {
            name: read.headers[name] for name in read.headers if name not in passing
        }
        assert status_of(answer).split("; ")[1:2] + status_of(answer).split("; ")[3:] == [
            "hit",
            *status_of(read).split("; ")[3:],
        ]
    assert again.headers["x-request-id"] == "mine"
    assert len({answer.headers["x-request-id"] for answer in (read, repeated)}) == 2


def test_it_is_recorded_and_counted(proxy: tuple[httpx.Client, Services]) -> None:
    client, services = proxy
    warm(client)
    ask(client, x_request_id="the-last")
    until_stored(services)
    records = services.answerer.journal.latest(10)
    hits = [record for record in records if record.reason == "hit-exact"]
    assert records[: len(hits)] == hits
    assert len(hits) >= 3
    assert records[0].request_id == "the-last"
    assert {record.prompt for record in records} == {records[0].prompt}
    entry = services.answerer.store.ls()[0]
    assert entry.hits == len(hits)
    counted = f'kvproxy_requests_total{{endpoint="chat",layer="exact",status="200"}} {len(hits)}.0'
    assert counted in client.get("/metrics").text


def test_what_is_removed_is_not_given_again(proxy: tuple[httpx.Client, Services]) -> None:
    client, _ = proxy
    before = warm(client)
    client.delete("/admin/cache", params={"all": "true"}).raise_for_status()
    after = ask(client)
    assert "fwd=uri-miss" in status_of(after)
    assert after.content != before.content
    assert warm(client).content == after.content


def test_another_process_may_remove_it(proxy: tuple[httpx.Client, Services]) -> None:
    client, services = proxy
    warm(client)
    until_stored(services)
    other = ResponseStore(services.settings.data / "responses.db")
    other.delete([entry.id for entry in other.ls()])
    other.close()
    assert "fwd=uri-miss" in status_of(ask(client))


def test_a_fresh_answer_takes_its_place(proxy: tuple[httpx.Client, Services]) -> None:
    client, _ = proxy
    before = warm(client)
    fresh = ask(client, cache_control="no-cache")
    assert fresh.content != before.content
    assert ask(client).content == fresh.content
    assert ask(client).content == fresh.content


def test_it_expires(proxy: tuple[httpx.Client, Services]) -> None:
    client, _ = proxy
    before = warm(client, x_kvproxy_ttl="1")
    until(lambda: ask(client, x_kvproxy_ttl="1").content != before.content)


def test_a_clock_that_is_set_back_brings_nothing_back(
    proxy: tuple[httpx.Client, Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, services = proxy
    warm(client)
    now = time.time()
    monkeypatch.setattr(services.answerer.repeater, "_clock", lambda: now - 3600)
    # It is read again, and judged by the store's own clock.
    assert "; hit;" in status_of(ask(client))


def test_other_headers_may_mean_another_asker(proxy: tuple[httpx.Client, Services]) -> None:
    client, _ = proxy
    warm(client, authorization="Bearer one")
    assert "fwd=uri-miss" in status_of(ask(client, authorization="Bearer two"))
    assert "fwd=request" in status_of(ask(client, authorization="Bearer one", cache_control="no-cache"))


def test_a_page_of_another_origin_is_refused_all_the_same(proxy: tuple[httpx.Client, Services]) -> None:
    client, _ = proxy
    warm(client)
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert client.post(PATH, json=body, headers={"origin": "https://evil.example"}).status_code == 403


def test_streams_are_repeated(proxy: tuple[httpx.Client, Services]) -> None:
    client, _ = proxy
    warm(client)
    first, second, third = (ask(client, body={"stream": True}) for _ in range(3))
    assert first.content == second.content == third.content
    assert third.headers["content-type"].startswith("text/event-stream")
    assert third.content.endswith(b"data: [DONE]\n\n")


def test_a_rule_that_is_read_again_holds_at_once(proxy: tuple[httpx.Client, Services]) -> None:
    client, services = proxy
    warm(client, x_team="sales")
    (services.settings.data / "kvproxy.toml").write_text(RULES)
    client.post("/admin/reload").raise_for_status()
    assert "fwd=request" in status_of(ask(client, x_team="sales"))


def test_who_has_no_key_gets_nothing_once_there_are_clients(proxy: tuple[httpx.Client, Services]) -> None:
    client, services = proxy
    warm(client)
    add_client(services.settings, "someone")
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    until(lambda: client.post(PATH, json=body).status_code == 401)


def test_a_deleted_store_is_noticed(proxy: tuple[httpx.Client, Services]) -> None:
    client, services = proxy
    warm(client)
    for file in services.settings.data.glob("responses.db*"):
        file.unlink()
    until(lambda: "; hit;" not in status_of(ask(client)))


def test_the_memory_is_bounded_and_forgets_what_was_used_longest_ago() -> None:
    def hit(number: int) -> tuple[Bytes, Remembered]:
        request = api_request({"model": "m", "messages": [{"role": "user", "content": f"{number:04}" * 100}]})
        key = cache_key(request, "upstream")
        entry = make_entry(key=key.exact)
        asked = Asked(request, key, True, Draft("chat", "id", "public", request, 0.0))
        again = Again(asked, entry)
        return sent_bytes(PATH, b"", request.raw, []), Remembered(again, [], entry.response)

    memory = Memory(most=10 * hit(0)[1].bytes)
    for number in range(10):
        memory.add(*hit(number))
    assert memory.find(hit(0)[0]) is not None
    memory.add(*hit(10))
    assert memory.find(hit(1)[0]) is None
    assert memory.find(hit(0)[0]) is not None
    assert len(memory) == 10
    memory.add(*hit(0))
    assert len(memory) == 10
    for number in range(11):
        memory.forget(hit(number)[0])
    for number in range(20, 30):
        memory.add(*hit(number))
    assert len(memory) == 10
