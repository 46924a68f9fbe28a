"""Requests that use a state of the provider: threads, stored responses, and objects that a client deletes."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.http.services import Services
from tests.flow.proxies import CLOSE, QUESTION, ask, checked, proxy
from tests.servers import run_front, run_upstream


class Provider:
    """Stores responses and threads as OpenAI and Anthropic do."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.stored: set[str] = set()
        self.continued: set[str] = set()
        self.requests = 0

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        if request.method == "DELETE":
            id = path.rpartition("/")[2]
            known = id in self.stored or id.startswith("file")
            self.stored.discard(id)
            return JSONResponse({"id": id, "deleted": known}, 200 if known else 404)
        if request.method != "POST":
            return JSONResponse({})
        self.requests += 1
        body = await request.json()
        number = next(self.numbers)
        if path == "/v1/messages":
            return self._message(body, f"msg_{number}")
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self.stored:
            return JSONResponse({"error": {"message": f"Previous response {previous} not found"}}, 400)
        id = f"resp_{number}"
        if body.get("store") is not False:
            self.stored.add(id)
        part = {"type": "output_text", "text": "Hi", "annotations": []}
        item = {
            "id": f"item_{number}",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [part],
        }
        echoed = {name: body.get(name) for name in ("user", "safety_identifier", "prompt_cache_key")}
        whole = {"id": id, "object": "response", "status": "completed", "output": [item], "error": None, "model": "m"}
        return JSONResponse({**whole, **echoed, "metadata": body.get("metadata") or {}})

    def _message(self, body: dict[str, Any], id: str) -> Response:
        previous = (body.get("thread") or {}).get("previous_message_id")
        if previous is not None:
            if previous in self.continued:
                return JSONResponse({"type": "error", "error": {"type": "thread_already_continued"}}, 400)
            self.continued.add(previous)
        content = [{"type": "text", "text": "Hi"}]
        end = {"stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}
        return JSONResponse({"id": id, "type": "message", "role": "assistant", "content": content, **end})


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def front(provider: Provider, tmp_path: Path) -> Iterator[tuple[str, Services]]:
    with run_upstream(provider.answer) as upstream, run_front(tmp_path, upstream) as running:
        yield running


@pytest.fixture
def url(front: tuple[str, Services]) -> str:
    return front[0]


def respond(url: str, **fields: Any) -> dict[str, Any]:
    reply: dict[str, Any] = httpx.post(f"{url}/v1/responses", json={"model": "m", "input": "x"} | fields).json()
    return reply


def message(url: str, **fields: Any) -> httpx.Response:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]} | fields
    return httpx.post(f"{url}/v1/messages", json=body, timeout=300)


def test_a_thread_is_neither_replayed_nor_shared(url: str, provider: Provider) -> None:
    with ThreadPoolExecutor(4) as pool:
        created = list(pool.map(lambda _: message(url, thread={"type": "create"}), range(4)))
    ids = {reply.json()["id"] for reply in created}
    assert len(ids) == provider.requests == 4
    assert {reply.headers["cache-status"] for reply in created} == {"kvproxy; fwd=bypass"}
    for id in ids:
        replies = [message(url, thread={"type": "continue", "previous_message_id": id}) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 400]
    assert message(url).json()["id"] == message(url).json()["id"]


def test_a_deleted_response_is_not_served_again(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        first = client.responses.create(model="m", input="x")
        follow_up = client.responses.create(model="m", input="y", previous_response_id=first.id)
        assert client.responses.create(model="m", input="x").id == first.id
        client.responses.delete(first.id)
        second = client.responses.create(model="m", input="x")
        assert second.id not in (first.id, follow_up.id)
        # The stored answer to the deleted response is removed, too, and the provider refuses its question.
        with pytest.raises(openai.BadRequestError, match="not found"):
            client.responses.create(model="m", input="y", previous_response_id=first.id)
        assert client.responses.create(model="m", input="y", previous_response_id=second.id).id
        assert client.responses.create(model="m", input="x").id == second.id


def test_an_object_that_the_provider_lacks_is_removed_for_its_own_tenant(url: str, provider: Provider) -> None:
    id = respond(url)["id"]
    provider.stored.clear()
    httpx.delete(f"{url}/v1/responses/{id}", headers={"authorization": "Bearer other"})
    assert respond(url)["id"] == id
    assert httpx.delete(f"{url}/v1/responses/{id}").status_code == 404
    assert respond(url)["id"] != id


def test_responses_made_from_a_deleted_file_are_removed(url: str) -> None:
    def ids() -> list[str]:
        parts = [[{"type": "input_file", "file_id": f"file_{number}"}] for number in (1, 2)]
        return [respond(url, input=[{"role": "user", "content": each}])["id"] for each in parts]

    before = ids()
    assert ids() == before
    httpx.delete(f"{url}/v1/files/file_1")
    after = ids()
    assert (after[0] == before[0], after[1] == before[1]) == (False, True)


def test_ids_of_the_provider_are_no_tags_of_the_statistics(front: tuple[str, Services]) -> None:
    url, services = front
    respond(url)
    services.cache.store.flush()
    assert httpx.get(f"{url}/admin/cache").json()[0]["tags"] == ["provider-id:resp_0"]
    assert httpx.get(f"{url}/admin/cache/stats").json()["tags"] == {}
    assert httpx.get(f"{url}/admin/cache/usage?by=tag").json() == []


def test_only_stored_responses_share_a_key_with_stored_responses(url: str) -> None:
    assert respond(url)["id"] == respond(url, store=True)["id"] != respond(url, store=False)["id"]


def test_a_hit_repeats_the_fields_of_its_own_request(url: str, provider: Provider) -> None:
    own: list[dict[str, Any]] = [{"metadata": {"run": str(run)}, "prompt_cache_key": f"key-{run}"} for run in range(3)]
    for fields in (*own, {}, own[0]):
        reply = respond(url, **fields)
        assert reply["metadata"] == fields.get("metadata", {})
        assert reply["prompt_cache_key"] == fields.get("prompt_cache_key")
    assert provider.requests == 1


def test_a_deleted_completion_has_no_semantic_hits(tmp_path: Path) -> None:
    with proxy(tmp_path, checked()) as (url, _, model):
        ask(url, QUESTION, store=True)
        assert "semantic" in ask(url, CLOSE, store=True).headers["cache-status"]
        assert httpx.delete(f"{url}/v1/chat/completions/x").status_code == 200
        assert "fwd=uri-miss" in ask(url, CLOSE, store=True).headers["cache-status"]
        assert model.asked == [QUESTION, CLOSE]
        # An answer that the provider does not store has no id that a client could delete.
        ask(url, QUESTION)
        httpx.delete(f"{url}/v1/chat/completions/x")
        assert "hit" in ask(url, QUESTION).headers["cache-status"]
