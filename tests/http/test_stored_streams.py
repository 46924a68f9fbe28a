"""Why a response is not stored, rules that override an upstream, and the usage of streams without `include_usage`."""

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.apis.sse import EventReader, encode_event
from kvproxy.http.services import Services
from kvproxy.journal.miss_explanation import explain_in_sentences, explain_miss
from kvproxy.journal.reader import JournalReader
from kvproxy.operations.record_query import RecordQuery
from tests.polling import until
from tests.requests import chat
from tests.servers import run_front, run_upstream, until_stored

HEAD = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def chunk(delta: Any, reason: str | None = None) -> bytes:
    return encode_event({**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


HELLO = [chunk({"role": "assistant", "content": "Hello "}), chunk({"content": "there"}), chunk({}, "stop")]
DONE = encode_event(b"[DONE]")
STREAMS = {
    "incomplete no finish reason": [HELLO[0], DONE],
    "no-done": HELLO[:2],
    "unmergeable field images": [chunk({"images": [{"a": 1}]}), chunk({"images": [{"a": 2}]}), HELLO[2], DONE],
    "error": [HELLO[0], encode_event({"error": {"message": "overloaded"}})],
}
HEADERS = {
    "no-store": {"cache-control": "no-store"},
    "private": {"cache-control": "no-cache, private"},
    "vary x-team": {"vary": "x-team, content-type, anthropic-version"},
    "compressed gzip": {"content-encoding": "gzip"},
}


class Upstream:
    """Answers depending on the model's name. It reports the usage of a stream on request, or refuses the request for it."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, request: Request) -> Response:
        if request.method != "POST":
            return Response()
        body = json.loads(await request.body())
        self.bodies.append(body)
        model, options = body["model"], body.get("stream_options")
        if model == "refuses usage" and options is not None:
            return JSONResponse({"error": {"message": "Unrecognized request argument: stream_options"}}, 400)
        if model == "refuses all":
            return JSONResponse({"error": {"message": "invalid"}}, 400)
        parts = STREAMS.get(model, [*HELLO, DONE])
        if (options or {}).get("include_usage") and model not in STREAMS and model != "no usage":
            parts = [*parts[:-1], encode_event({**HEAD, "choices": [], "usage": USAGE}), DONE]
        stream = b"".join(parts)
        stream = gzip.compress(stream) if model == "compressed gzip" else stream
        return StreamingResponse(
            iter([stream[start : start + 7] for start in range(0, len(stream), 7)]),
            media_type="text/event-stream",
            headers=HEADERS.get(model),
        )


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Services, Upstream]]:
    upstream = Upstream()
    rule = {"name": "trusted", "model": "*", "headers": {"x-trusted": "*"}, "store_despite": ["no-store", "private"]}
    with (
        run_upstream(upstream.answer) as target,
        run_front(tmp_path_factory.mktemp("front"), target, rules=[rule]) as (url, services),
        httpx.Client(base_url=url, timeout=300) as client,
    ):
        yield client, services, upstream


def ask(
    front: tuple[httpx.Client, Services, Upstream], model: str, *, stream: bool = True, **more: Any
) -> httpx.Response:
    headers = more.pop("headers", {})
    answer = front[0].post("/v1/chat/completions", json=chat(model=model, stream=stream, **more), headers=headers)
    until(lambda: not front[1].path.requests_in_flight)
    until_stored(front[1])
    return answer


@contextlib.contextmanager
def last_record(front: tuple[httpx.Client, Services, Upstream]) -> Iterator[tuple[JournalReader, Any]]:
    front[1].journal.flush()
    with contextlib.closing(JournalReader(Path(front[1].settings.data) / "journal.db")) as reader:
        yield reader, reader.records(RecordQuery(limit=1))[0]


@pytest.mark.parametrize("cause", [*STREAMS, *HEADERS])
def test_the_cause_of_not_storing_is_named(front: tuple[httpx.Client, Services, Upstream], cause: str) -> None:
    with_name = ask(front, cause).headers["cache-status"]
    # The causes in a stream are unknown when its head is sent, unless all of it arrived before.
    assert f'detail="not stored: {cause}"' in with_name or (cause in STREAMS and "not stored" not in with_name)
    with last_record(front) as (reader, record):
        assert record.not_stored == cause
        assert any(cause in line for line in explain_in_sentences(explain_miss(reader, record, lambda _: None), str))
    metrics = front[0].get("/metrics").text
    assert f'kvproxy_not_stored_total{{cause="{cause.split()[0]}"}} 1.0' in metrics


@pytest.mark.parametrize("cause", ["no-store", "private"])
def test_a_rule_stores_despite_the_upstream(front: tuple[httpx.Client, Services, Upstream], cause: str) -> None:
    headers = {"x-trusted": "1"}
    ask(front, cause, headers=headers)
    assert "hit" in ask(front, cause, headers=headers).headers["cache-status"]


def test_a_stream_without_usage_is_asked_for_it(front: tuple[httpx.Client, Services, Upstream]) -> None:
    first = ask(front, "plain")
    assert first.content == b"".join([*HELLO, DONE])
    assert front[2].bodies[-1]["stream_options"] == {"include_usage": True}
    assert ask(front, "plain", stream=False).json()["usage"] == USAGE
    again = ask(front, "plain", stream_options={"include_usage": True})
    events = [json.loads(event.data) for event in EventReader().push(again.content) if event.data != b"[DONE]"]
    assert (events[-1]["choices"], events[-1]["usage"]) == ([], USAGE)
    assert b"usage" not in ask(front, "plain").content
    with last_record(front) as (_, record):
        assert (record.prompt_tokens, record.completion_tokens) == (7, 2)


def test_a_stream_names_the_key_of_its_stored_response(front: tuple[httpx.Client, Services, Upstream]) -> None:
    first, again = ask(front, "named").headers["cache-status"], ask(front, "named").headers["cache-status"]
    assert first.partition("; key=")[::2] == ("kvproxy; fwd=uri-miss", again.partition("; key=")[2])
    key = first.partition('key="')[2].removesuffix('"')
    assert front[0].get(f"/admin/cache/{key}").json()["id"] == key
    unstored = ask(front, "named other", headers={"cache-control": "no-store"})
    assert "key=" not in unstored.headers["cache-status"]


def test_a_client_that_asks_for_usage_gets_it(front: tuple[httpx.Client, Services, Upstream]) -> None:
    answer = ask(front, "asks", stream_options={"include_usage": True, "include_obfuscation": False})
    assert json.dumps(USAGE, separators=(",", ":")).encode() in answer.content
    assert front[2].bodies[-1]["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    ask(front, "declines", stream_options={"include_obfuscation": False})
    assert front[2].bodies[-1]["stream_options"] == {"include_usage": True, "include_obfuscation": False}


def test_unknown_usage_is_unknown_everywhere(front: tuple[httpx.Client, Services, Upstream]) -> None:
    ask(front, "no usage")
    hit = ask(front, "no usage", stream=False)
    assert "hit" in hit.headers["cache-status"]
    assert "usage" not in hit.json()
    with last_record(front) as (reader, record):
        assert (record.prompt_tokens, record.completion_tokens) == (None, None)
        totals = {row.name: row for row in reader.totals("model") if row.layer == "exact"}
    entry = front[0].get(f"/admin/cache/{record.entry}").json()
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (None, None)
    assert (totals["no usage"].unreported, totals["plain"].unreported) == (1, 0)


def test_an_upstream_that_refuses_the_request_for_usage_still_answers(
    front: tuple[httpx.Client, Services, Upstream],
) -> None:
    before = len(front[2].bodies)
    assert ask(front, "refuses all").status_code == 400
    assert len(front[2].bodies) == before + 2
    answer = ask(front, "refuses usage")
    assert answer.content == b"".join([*HELLO, DONE])
    assert "hit" in ask(front, "refuses usage").headers["cache-status"]
    # It is not asked again.
    ask(front, "another after the refusal")
    assert "stream_options" not in front[2].bodies[-1]
    assert len(front[2].bodies) == before + 5
