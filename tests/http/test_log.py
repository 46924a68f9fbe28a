"""The journal's routes return the journal's rows; the stream resumes at its last event, and ends with the proxy."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from kvproxy.http.services import Services
from kvproxy.journal.record import Record
from kvproxy.operations.record_query import RecordQuery
from tests.plain_upstream import run_plain_upstream
from tests.requests import chat
from tests.servers import run_front

Running = tuple[httpx.Client, Services]


def ask(client: httpx.Client, question: str, **fields: object) -> httpx.Response:
    return client.post("/v1/chat/completions", json=chat(question, **fields))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data: Path = tmp_path_factory.mktemp("log")
    with (
        run_plain_upstream() as upstream,
        run_front(data, upstream) as (url, services),
        httpx.Client(base_url=url) as client,
    ):
        for question in ("one", "two", "one", "one"):
            assert ask(client, question).status_code == 200
        ask(client, "one", model="other")
        services.journal.latest(1)
        yield client, services


def records(services: Services) -> Sequence[Record]:
    return services.journal.read(lambda reader: reader.records(RecordQuery()))


def test_filters_and_pages(running: Running) -> None:
    client, _ = running
    every = client.get("/admin/log").json()
    for name in ("layer", "reason", "model"):
        for value in {each[name] for each in every}:
            wanted = [each for each in every if each[name] == value]
            assert client.get("/admin/log", params={name: value}).json() == wanted
    for query in ("layer=nonsense", "limit=-1", "before=x"):
        assert client.get(f"/admin/log?{query}").status_code == 400
    pages, before = [], None
    while page := client.get("/admin/log", params={"limit": 2} | ({"before": before} if before else {})).json():
        pages += page
        before = page[-1]["number"]
    assert pages == every


def test_the_series_counts_every_record(running: Running) -> None:
    client, services = running
    every = records(services)
    for by in ("layer", "reason"):
        found = client.get("/admin/log/series", params={"since": 600, "step": 60, "by": by}).json()
        assert all(len(counts) in (10, 11) for counts in found["counts"].values())
        sums = {name: sum(counts) for name, counts in found["counts"].items()}
        assert sums == {name: sum(getattr(each, by) == name for each in every) for name in sums}
        assert sum(sums.values()) == len(every)
    assert client.get("/admin/log/series", params={"since": 1e9, "step": 1}).status_code == 400


def test_the_series_covers_a_period_that_begins_within_an_interval(running: Running) -> None:
    client, services = running
    times = sorted(each.time for each in records(services))
    # The second interval begins between the first and the last request.
    middle = (times[0] + times[-1]) / 2
    until = times[-1] + 1
    query = {"since": until - times[0], "until": until, "step": middle / 1000}
    found = client.get("/admin/log/series", params=query).json()
    sums = [sum(counts) for counts in zip(*found["counts"].values(), strict=True)]
    assert (len(sums), sum(sums)) == (2, len(times))
    query = {"since": times[-1] - middle, "until": times[-1], "step": 60}
    found = client.get("/admin/log/series", params=query).json()
    wanted = sum(middle <= time < times[-1] for time in times)
    assert sum(map(sum, found["counts"].values())) == wanted


def test_the_series_times_hits_and_the_backend(running: Running) -> None:
    client, services = running
    every = records(services)
    found = client.get("/admin/log/series", params={"since": 1200, "step": 600}).json()
    for name, layers in (("cached_ms", ("exact",)), ("backend_ms", ("forward",))):
        times = [each.first_ms for each in every if each.layer in layers and each.first_ms is not None]
        spans = [each for each in found[name] if each is not None]
        assert spans, name
        for median, high in spans:
            assert min(times) - 0.001 <= median <= high <= max(times) + 0.001


def test_a_story_says_why(running: Running) -> None:
    client, services = running
    record = services.journal.latest(1)[0]
    told = client.get(f"/admin/log/{record.request_id}").json()
    assert told["explained"]["record"]["number"] == record.number
    assert any("another model was asked: m then, other now" in sentence for sentence in told["sentences"])
    assert client.get("/admin/log/nobody").status_code == 404
    sentences = client.get("/admin/log/reasons").json()
    assert all(each["reason"] in sentences for each in client.get("/admin/log").json())


def events(response: httpx.Response) -> Iterator[tuple[str, dict[str, object]]]:
    kind = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


def test_new_records_come_as_events_and_none_is_missed(running: Running) -> None:
    client, services = running
    last = services.journal.latest(1)[0].number
    ask(client, "before the stream")
    with client.stream("GET", "/admin/log/live", params={"after": last, "layer": "forward"}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        told = events(response)
        assert next(told)[0] == "hello"
        kind, first = next(told)
        assert (kind, [each["question"] for each in first["records"]]) == ("records", ["before the stream"])  # type: ignore[attr-defined]
        for question in ("one", "after it began"):
            ask(client, question)
        # The filter holds here too: the exact hit is left out.
        assert [each["question"] for each in next(told)[1]["records"]] == ["after it began"]  # type: ignore[attr-defined]


def test_the_stream_ends_when_the_proxy_stops(tmp_path: Path) -> None:
    """It has no end of its own: a stop would wait for it as long as for a request."""
    with run_plain_upstream() as upstream, httpx.Client() as client:
        with run_front(tmp_path, upstream, limits={"drain_seconds": 60.0}) as (url, _):
            response = client.send(client.build_request("GET", f"{url}/admin/log/live"), stream=True)
            told = events(response)
            assert next(told)[0] == "hello"
            began = time.monotonic()
        assert list(told) == []
        assert time.monotonic() - began < 30
        response.close()


def test_without_a_journal_the_fix_is_named(tmp_path: Path) -> None:
    with run_front(tmp_path, "http://127.0.0.1:9", journal={"enabled": False}) as (url, _):
        answer = httpx.get(f"{url}/admin/log")
    assert (answer.status_code, "journal.enabled" in answer.text) == (404, True)
