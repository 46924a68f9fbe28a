"""Every way in which a request can end leaves one record, with its reason."""

import asyncio
import contextlib
import json
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvproxy.clients.client_keys import add_client
from kvproxy.http.services import Services
from kvproxy.journal.journal import StoredJournal
from kvproxy.journal.reasons import reasons
from kvproxy.journal.record import Record
from kvproxy.settings import load_settings
from tests.commands.run import kvproxy
from tests.polling import until
from tests.servers import run_app, run_front, until_stored, waiting_clients

USAGE = {"prompt_tokens": 40, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 30}}
CHAT = "/v1/chat/completions"


def answer(**more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "An answer."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **more}


GATE = threading.Event()


async def chat(request: Request) -> Response:
    """End the answer in the way that the question names."""
    body = orjson.loads(await request.body())
    asked = body["messages"][-1]["content"] if isinstance(body.get("messages"), list) else ""
    if "missing" in asked:
        return JSONResponse({"error": {"message": "no such model"}}, 404)
    if "own id" in asked:
        named = {"x-request-id": f"req_{body['model']}"}
        return JSONResponse(answer(usage=USAGE) | {"id": f"chatcmpl-{body['model']}"}, headers=named)
    if "fail" in asked:
        return JSONResponse({"error": {"message": "no"}}, 500)
    if "wait" in asked:
        await asyncio.sleep(30)
    if "gate" in asked:
        await asyncio.to_thread(GATE.wait)
    if body.get("stream"):
        return StreamingResponse(
            _stream("break" in asked, "slow" in asked, "late" in asked), media_type="text/event-stream"
        )
    return JSONResponse(answer(usage={**USAGE, **({"prompt_tokens_details": None} if "cold" in asked else {})}))


async def _stream(broken: bool, slow: bool, late: bool) -> AsyncIterator[bytes]:
    if late:
        # The head is sent already.
        await asyncio.sleep(0.3)
    for text in ("An ", "answer."):
        delta = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
        yield b"data: " + orjson.dumps(answer() | {"choices": [delta]}) + b"\n\n"
        if broken:
            raise ConnectionError("the test breaks it off")
        if slow:
            await asyncio.sleep(30)
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    yield b"data: " + orjson.dumps(answer() | {"choices": [last], "usage": USAGE}) + b"\n\ndata: [DONE]\n\n"


def upstream() -> contextlib.AbstractContextManager[str]:
    return run_app(Starlette(routes=[Route(CHAT, chat, methods=["POST"])]))


def ask(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": question}], **fields}


def records(services: Services) -> list[Record]:
    """All records, the newest first."""
    journal = services.journal
    assert isinstance(journal, StoredJournal)
    return journal.latest(1000)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Services]]:
    limits = {"body_bytes": 5_000}
    with upstream() as url, run_front(tmp_path_factory.mktemp("journal"), url, limits=limits) as found:
        yield found


def last(services: Services, request_id: str) -> Record:
    """Return the only record of a request, which may be delayed if the client has disconnected."""
    until(lambda: any(each.request_id == request_id for each in records(services)), interval=0.01)
    (record,) = (each for each in records(services) if each.request_id == request_id)
    return record


def post(url: str, id: str, body: dict[str, Any] | bytes, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(url + CHAT, content=content, headers={"x-request-id": id, **headers}, timeout=300)


def leave(url: str, id: str, body: dict[str, Any]) -> None:
    """Ask, and go after the first part of the answer, or after a moment without one."""
    with contextlib.suppress(httpx.ReadTimeout), httpx.Client(timeout=0.3) as client:
        sent = client.build_request("POST", url + CHAT, json=body, headers={"x-request-id": id})
        response = client.send(sent, stream=True)
        next(response.iter_bytes())
        response.close()


CASES: dict[str, tuple[dict[str, Any] | bytes, dict[str, str], int, str]] = {
    "reused": (ask("reused"), {}, 200, "prefix-75%"),
    "new": (ask("cold"), {}, 200, "miss-new"),
    "tools": (ask("cold tools", tools=[{"type": "function", "function": {"name": "f"}}]), {}, 200, "miss-new"),
    "fresh": (ask("fresh"), {"cache-control": "no-cache"}, 200, "asked-fresh"),
    "only": (ask("only"), {"cache-control": "only-if-cached"}, 504, "not-cached"),
    "uncacheable": (ask("u", stream=True, prompt_logprobs=1), {}, 200, "uncacheable"),
    "failed": (ask("fail"), {}, 500, "error-upstream"),
    "missing": (ask("missing"), {}, 404, "refused-upstream"),
    "unread": (b"no JSON", {}, 500, "bypass-unread"),
    "header": (ask("header"), {"x-kvproxy-ttl": "soon"}, 400, "refused-invalid"),
    "large": (ask("x" * 6_000), {}, 413, "refused-size"),
}


def test_endings_are_recorded_in_the_file(running: tuple[str, Services]) -> None:
    url, services = running
    for name, (body, headers, status, reason) in CASES.items():
        assert post(url, name, body, **headers).status_code == status
        record = last(services, name)
        assert (record.reason, record.status, record.api) == (reason, status, "chat")
        assert record.reason.replace("75", "N") in reasons()
    found = {each.number: each for each in records(services)}
    connection = sqlite3.connect(services.settings.data / "journal.db")
    connection.row_factory = sqlite3.Row
    rows = connection.execute("select * from requests").fetchall()
    connection.close()
    assert len(rows) == len(found) >= len(CASES)
    for row in rows:
        record = found[row["number"]]
        for name in ("request_id", "tenant", "model", "layer", "reason", "entry", "status", "completion_tokens"):
            assert (row[name] or None) == (getattr(record, name) or None), name
        assert row["total_ms"] == pytest.approx(record.total_ms, abs=0.001)


def test_a_hit_names_its_entry_in_the_header_and_in_the_record(running: tuple[str, Services]) -> None:
    url, services = running
    made = post(url, "made", ask("twice"), **{"x-kvproxy-tags": "a, b"})
    hit = post(url, "hit", ask("twice"))
    first, second = last(services, "made"), last(services, "hit")
    assert f'; key="{second.entry}"' in hit.headers["cache-status"]
    assert f'; key="{first.entry}"' in made.headers["cache-status"]
    assert first.entry == second.entry
    assert (first.layer, second.layer, second.reason) == ("prefix", "exact", "hit-exact")
    assert (second.prompt_tokens, second.completion_tokens, second.reused_tokens) == (40, 7, None)
    assert (first.prompt_tokens, first.reused_tokens, first.completion_tokens) == (40, 30, 7)
    assert (first.tags, first.model, first.tenant) == ("a,b", "m", "public")
    assert first.backend_ms
    assert first.total_ms
    assert first.total_ms >= (first.first_ms or 0) > 0
    assert second.exact_ms is not None
    assert second.backend_ms is None


def test_the_tags_of_a_record_are_those_of_its_request(running: tuple[str, Services]) -> None:
    url, services = running
    post(url, "tagged", ask("tagged twice"), **{"x-kvproxy-tags": "about"})
    assert (
        "; hit" in post(url, "tagged-hit", ask("tagged twice"), **{"x-kvproxy-tags": "prices"}).headers["cache-status"]
    )
    assert last(services, "tagged-hit").tags == "prices"

    def names(path: str, **query: str) -> set[str]:
        found = httpx.get(f"{url}/admin/{path}", params=query)
        assert found.status_code == 200, found.text
        rows = found.json()
        return {row["name"] for row in (rows["rows"] if isinstance(rows, dict) else rows)}

    ids = {row["request_id"] for row in httpx.get(f"{url}/admin/log", params={"tag": "prices"}).json()}
    assert ids == {"tagged-hit"}
    assert {"about", "prices"} <= names("savings", by="tag")
    assert "prices" not in names("cache/usage", by="tag")


def test_a_stream_is_recorded_at_its_end(running: tuple[str, Services]) -> None:
    url, services = running
    assert "[DONE]" in post(url, "stream", ask("late", stream=True)).text
    record = last(services, "stream")
    assert (record.layer, record.completion_tokens) == ("prefix", 7)
    assert record.entry is not None
    # The head of a stream arrives before the prefill, so it does not count.
    assert record.prefill_ms is not None
    assert record.prefill_ms >= 290
    assert "An " in post(url, "replayed", ask("late", stream=True)).text
    assert last(services, "replayed").reason == "hit-exact"


def test_an_answer_that_breaks_off_and_a_client_that_leaves(running: tuple[str, Services]) -> None:
    url, services = running
    with pytest.raises(httpx.RemoteProtocolError):
        post(url, "broken", ask("break", stream=True))
    record = last(services, "broken")
    assert (record.layer, record.reason, record.entry) == ("error", "error-broken", None)
    assert record.not_stored == "incomplete"
    leave(url, "waits", ask("wait"))
    leave(url, "reads", ask("slow", stream=True))
    for id, reason in (("waits", "disconnected-waiting"), ("reads", "disconnected-reading")):
        assert (last(services, id).layer, last(services, id).reason) == ("disconnected", reason)


def test_a_failed_request_shows_its_question(running: tuple[str, Services]) -> None:
    url, services = running
    kept = {"failed-question": "fail: why?", "late-question": "wait for it", "unstored-question": "fail: a secret?"}
    headers = {"late-question": {"x-kvproxy-timeout": "0.2"}, "unstored-question": {"cache-control": "no-store"}}
    for id, question in kept.items():
        post(url, id, ask(question), **headers.get(id, {}))
    assert last(services, "late-question").reason == "disconnected-timeout"
    assert (last(services, "failed-question").not_stored or "").startswith("status ")
    assert 'kvproxy_not_stored_total{cause="status"}' in httpx.get(f"{url}/metrics").text
    assert {id: last(services, id).text for id in kept} == {**kept, "unstored-question": None}
    for command in (("log", "show", "late-question"), ("explain", "--request", "late-question")):
        shown = kvproxy(*command, url=url).stdout
        assert re.search(r"^question[\t ]+wait for it$", shown, re.M), shown
    assert "kvproxy log lists them" in kvproxy("log", "show", "req_011C", url=url).stderr


def test_each_id_that_the_client_received_finds_the_request(running: tuple[str, Services]) -> None:
    url, services = running
    answered = post(url, "with-own-ids", ask("own id"))
    assert answered.headers["x-kvproxy-request-id"] == "with-own-ids"
    hit = post(url, "its-hit", ask("own id"))
    assert (hit.json()["id"], last(services, "its-hit").layer) == ("chatcmpl-m", "exact")
    for id in (answered.headers["x-request-id"], answered.json()["id"]):
        assert "request_id\twith-own-ids\n" in kvproxy("log", "show", id, url=url).stdout
        assert httpx.get(f"{url}/admin/log/{id}").json()["explained"]["record"]["request_id"] == "with-own-ids"
    own, of_hit = last(services, "with-own-ids"), last(services, "its-hit")
    assert (own.upstream_request_id, own.response_id) == ("req_m", "chatcmpl-m")
    assert (of_hit.upstream_request_id, of_hit.response_id) == (None, None)


def test_the_log_of_a_broken_stream_names_the_upstream(
    running: tuple[str, Services], caplog: pytest.LogCaptureFixture
) -> None:
    url, services = running
    with caplog.at_level("WARNING"), pytest.raises(httpx.RemoteProtocolError):
        post(url, "named", ask("break", stream=True))
    assert f"the upstream {last(services, 'named').upstream} broke its response off" in caplog.text
    assert "the connection ended before the body did" in caplog.text


def test_identical_requests_under_way_are_told_apart(running: tuple[str, Services]) -> None:
    url, services = running
    GATE.clear()
    threads = [threading.Thread(target=post, args=(url, f"join{n}", ask("gate"))) for n in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: waiting_clients(services) == 2)
    GATE.set()
    for thread in threads:
        thread.join()
    both = [last(services, f"join{n}") for n in range(2)]
    assert sorted(each.layer for each in both) == ["prefix", "shared"]
    assert {each.completion_tokens for each in both} == {7}
    assert len({each.entry for each in both}) == 1


def test_clients_that_are_turned_away(tmp_path: Path) -> None:
    key = add_client(load_settings(data=tmp_path), "ann", requests_per_minute=1)
    small = add_client(load_settings(data=tmp_path), "bob", tokens_per_minute=5)
    with upstream() as url, run_front(tmp_path, url) as (address, services):
        auth = {"authorization": f"Bearer {key}"}
        assert post(address, "in", ask("cold"), **auth).status_code == 200
        assert post(address, "out", ask("cold"), **auth).status_code == 429
        assert post(address, "who", ask("cold")).status_code == 401
        assert post(address, "long", ask("many words"), authorization=f"Bearer {small}").status_code == 413
        assert last(services, "long").reason == "refused-limit"
        assert (last(services, "in").client, last(services, "in").tenant) == ("ann", "client:ann")
        assert (last(services, "out").reason, last(services, "out").tenant) == ("refused-limit", "client:ann")
        assert (last(services, "who").reason, last(services, "who").client) == ("refused-key", None)


def test_a_model_that_is_not_served_is_the_clients_error(demo: tuple[str, Services]) -> None:
    url, services = demo
    assert post(url, "no-model", ask("Which model?", model="nope")).status_code == 404
    record = last(services, "no-model")
    assert (record.layer, record.reason, record.status) == ("refused", "refused-model", 404)
    assert record.reason in reasons()
    counted = 'kvproxy_requests_total{endpoint="chat",layer="refused",status="404"}'
    assert counted in httpx.get(f"{url}/metrics").text


def test_an_answer_that_was_not_kept_is_the_reason_though_a_question_is_near(demo: tuple[str, Services]) -> None:
    url, services = demo
    assert post(url, "near", {**ask("What is a token?"), "model": "demo"}).status_code == 200
    # Semantic matching needs the neighbour in the store.
    until_stored(services)
    other = {**ask("What isn't a token?"), "model": "demo"}
    assert post(url, "unstored-1", other, **{"cache-control": "no-store"}).status_code == 200
    assert last(services, "unstored-1").reason == "veto-negation"
    assert post(url, "unstored-2", other).status_code == 200
    record = last(services, "unstored-2")
    assert record.near is not None
    assert record.reason == "miss-unstored"


def test_a_vetoed_question_is_compared_with_the_nearest_one(demo: tuple[str, Services]) -> None:
    url, services = demo
    for id, question in (("chain", "What is a chain?"), ("later", "How large is the pool?")):
        assert post(url, id, {**ask(question), "model": "demo"}).status_code == 200
        until_stored(services)
    assert post(url, "vetoed", {**ask("What isn't a chain?"), "model": "demo"}).status_code == 200
    assert last(services, "vetoed").reason == "veto-negation"
    found = kvproxy("explain", "--url", url, "--request", "vetoed").stdout
    assert "The earlier request most like it is chain, " in found
    assert "'is' became \"isn't\"" in found


def test_an_equal_request_explains_a_miss_before_another_model(tmp_path: Path) -> None:
    async def answer_unstored(request: Request) -> Response:
        return JSONResponse(answer(), headers={"cache-control": "no-store"})

    app = Starlette(routes=[Route(CHAT, answer_unstored, methods=["POST"])])
    with run_app(app) as upstream, run_front(tmp_path, upstream) as (url, services):
        for id, model in (("first", "a"), ("second", "b"), ("third", "b")):
            assert post(url, id, ask("same", model=model)).status_code == 200
            reason = last(services, id).reason
        assert reason == "miss-unstored"
        found = kvproxy("explain", "--url", url, "--request", "third").stdout
    assert "An equal request was answered before" in found
    assert "another model" not in found
    assert "most like it" not in found
