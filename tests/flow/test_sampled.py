"""A request that samples gets the stored sample, unless it, a rule, or a setting asks for a fresh one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.http.services import Services
from kvproxy.journal.record import Record
from tests.plain_upstream import WHOLE, run_plain_upstream
from tests.polling import until
from tests.servers import run_front, run_upstream

SAMPLE = {"temperature": 0.7}
FRESH = {"temperature": 0.7, "model": "fresh"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    rule = {"name": "samples", "model": "fresh", "sampled_requests": "fresh"}
    with run_plain_upstream() as upstream:
        data: Path = tmp_path_factory.mktemp("sampled")
        with run_front(data, upstream, rules=[rule]) as (found, _):
            yield found


def request(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": question}], **fields}


def status(url: str, question: str, control: str = "", **fields: Any) -> str:
    headers = {"cache-control": "confirm" + (f", {control}" if control else "")}
    answer = httpx.post(f"{url}/v1/chat/completions", json=request(question, **fields), headers=headers)
    assert answer.status_code == 200
    return answer.headers["cache-status"]


@pytest.mark.parametrize(
    ("fields", "hit"),
    [
        ({}, True),
        ({"temperature": 0}, True),
        ({"temperature": 0.7}, True),
        ({"temperature": 1, "top_p": 0.9}, True),
        (FRESH, False),
        ({**FRESH, "seed": 3}, True),
        ({"model": "fresh"}, True),
    ],
)
def test_only_a_rule_with_fresh_samples_prevents_a_hit(url: str, fields: dict[str, Any], hit: bool) -> None:
    question = f"Which of {sorted(fields.items())}?"
    assert "; stored" in status(url, question, **fields)
    assert ("; hit" in status(url, question, **fields)) == hit


def test_another_temperature_is_another_request(url: str) -> None:
    status(url, "Which temperature?", **SAMPLE)
    assert "; hit" not in status(url, "Which temperature?", temperature=0.8)


def test_no_cache_asks_for_another_sample(url: str) -> None:
    status(url, "Again?", **SAMPLE)
    assert "fwd=request" in status(url, "Again?", "no-cache", **SAMPLE)


def test_a_request_may_accept_the_stored_sample(url: str) -> None:
    assert "fwd=uri-miss" in status(url, "Accept?", **FRESH)
    assert "; hit" in status(url, "Accept?", "max-age=60", **FRESH)
    assert "; hit" in status(url, "Accept?", "only-if-cached", **FRESH)
    assert "fwd=request" in status(url, "Accept?", "no-cache, max-age=60", **FRESH)


class _TwoSamples:
    """An upstream that answers once it has two requests, as a test of their number."""

    def __init__(self) -> None:
        self._requests = 0
        self._both = asyncio.Event()

    async def answer(self, request: Request) -> Response:
        if request.method == "POST":
            self._requests += 1
            number = self._requests
            if number == 2:
                self._both.set()
            await asyncio.wait_for(self._both.wait(), 20)
            return JSONResponse(WHOLE | {"id": str(number)})
        return JSONResponse({"object": "list", "data": []})


async def test_equal_sampled_requests_in_flight_get_a_sample_each(tmp_path: Path) -> None:
    with run_upstream(_TwoSamples().answer) as upstream, run_front(tmp_path, upstream) as (url, _):
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            body = request("Which is best?", **SAMPLE)
            answers = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(2)))
    assert {answer.json()["id"] for answer in answers} == {"1", "2"}


class _Samples:
    """An upstream that answers all requests together, when `number` of them wait."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._requests = 0
        self._all = asyncio.Event()

    async def answer(self, request: Request) -> Response:
        if request.method != "POST":
            return JSONResponse({"object": "list", "data": []})
        self._requests += 1
        name = str(self._requests)
        if self._requests == self._number:
            self._all.set()
        await asyncio.wait_for(self._all.wait(), 60)
        return JSONResponse(WHOLE | {"id": name})


def _forwarded(services: Services, number: int) -> list[Record]:
    """The records of forwarded requests, once there are `number`."""

    def found() -> list[Record]:
        return [record for record in services.journal.latest(2 * number) if record.layer == "forward"]

    until(lambda: len(found()) == number)
    return found()


async def test_of_concurrent_samples_the_first_is_stored_and_the_others_are_duplicates(tmp_path: Path) -> None:
    with run_upstream(_Samples(5).answer) as upstream, run_front(tmp_path, upstream) as (url, services):
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            body = request("Which is best?", **SAMPLE)
            answers = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(5)))
            hit = await client.post("/v1/chat/completions", json=body)
            counted = 'kvproxy_not_stored_total{cause="duplicate"} 4.0'
            await asyncio.to_thread(until, lambda: counted in httpx.get(f"{url}/metrics").text)
        status = hit.headers["cache-status"]
        assert "; hit" in status
        named = [answer for answer in answers if "key=" in answer.headers["cache-status"]]
        assert [answer.json()["id"] for answer in named] == [hit.json()["id"]]
        assert named[0].headers["cache-status"].partition("key=")[2] == status.partition("key=")[2]
        others = [answer.headers["cache-status"] for answer in answers if answer is not named[0]]
        assert all('detail="not stored: duplicate"' in other for other in others)
        records = await asyncio.to_thread(_forwarded, services, 5)
    assert sorted(record.reason for record in records) == ["miss-concurrent"] * 4 + ["miss-new"]
    assert sorted(record.not_stored or "" for record in records) == ["", *["duplicate"] * 4]
    assert [record.entry for record in records if record.entry] == [status.partition('key="')[2].rstrip('"')]


async def test_concurrent_requests_for_fresh_responses_are_all_stored_in_turn(tmp_path: Path) -> None:
    with run_upstream(_Samples(5).answer) as upstream, run_front(tmp_path, upstream) as (url, services):
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            body, fresh = request("Which is new?"), {"cache-control": "no-cache"}
            answers = await asyncio.gather(
                *(client.post("/v1/chat/completions", json=body, headers=fresh) for _ in range(5))
            )
            hit = await client.post("/v1/chat/completions", json=body)
        assert "; hit" in hit.headers["cache-status"]
        assert all('key="' in answer.headers["cache-status"] for answer in answers)
        records = await asyncio.to_thread(_forwarded, services, 5)
    assert {record.reason for record in records} == {"asked-fresh"}
    assert {record.not_stored for record in records} == {None}
