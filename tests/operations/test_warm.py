"""Reading of request logs, batches, exports and prompts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.apis.json import Json, as_object, loads
from kvproxy.commands.files import read_text
from kvproxy.errors import InvalidRequest
from kvproxy.journal.request_regions import regions_as_json, request_body_of
from kvproxy.operations.warm import WarmSource, read_file_requests, select_prefixes
from tests.commands.test_warm import lines, said


def read(folder: Path, *texts: str, system: str | None = None, format: str | None = None) -> WarmSource:
    file = folder / "file"
    file.write_bytes("\n".join(texts).encode())
    return read_file_requests(file, read_text(file), "m", system, format=format)


def questions(source: WarmSource) -> list[str]:
    return [each.body["messages"][-1]["content"] for each in source.requests]


def test_access_logs_are_sorted_by_frequency_without_failed_requests(tmp_path: Path) -> None:
    log = lines(
        tmp_path / "log.jsonl",
        {"method": "POST", "path": "/v1/chat/completions?a=1", "status": 200, "body": said("once")},
        {"method": "post", "url": "http://host/v1/messages", "request": said("often", max_tokens=5), "response": {}},
        {"endpoint": "/v1/chat/completions", "status": 500, "request_body": said("failed")},
        {"method": "GET", "path": "/v1/models", "status": 200, "body": said("got")},
        {"path": "/v1/images", "status": 200, "body": {"prompt": "a picture"}},
        {"path": "/v1/messages", "request_body": json.dumps(said("often", max_tokens=5, stream=True))},
        {"path": "/v1/files", "body": {"purpose": "batch"}},
        {"route": "/v1/embeddings", "payload": {"model": "e", "input": ["a", "b"]}},
        # Most lines of a log have no body, or a body that is not JSON.
        {"method": "POST", "path": "/v1/chat/completions", "status": 200},
        {"method": "GET", "path": "/health", "status": 200, "body": None},
        {"method": "POST", "path": "/v1/chat/completions", "status": 200, "body": ""},
        {"method": "POST", "path": "/upload", "status": 200, "body": "name=x"},
    )
    reading = read_file_requests(log, read_text(log), "default", None)
    assert [(each.path, each.count, each.line) for each in reading.requests] == [
        ("/v1/messages", 2, 2),
        ("/v1/chat/completions", 1, 1),
        ("/v1/embeddings", 1, 8),
    ]
    assert (reading.skipped, reading.errors) == (8, [])
    select_prefixes(reading)
    assert [each.path for each in reading.requests] == ["/v1/messages", "/v1/chat/completions"]
    assert {each.body["max_tokens"] for each in reading.requests} == {1}


@pytest.mark.parametrize("value", [{"a": 1}, {"input": "where to?"}, {"body": {"a": 1}}, {"mesages": []}])
def test_malformed_requests_are_reported_and_the_rest_is_read(tmp_path: Path, value: Any) -> None:
    reading = read(tmp_path, json.dumps(said("a")), json.dumps(value), json.dumps(said("b")))
    assert questions(reading) == ["a", "b"]
    assert [error.line for error in reading.errors] == [2]
    with pytest.raises(InvalidRequest, match="line 2"):
        read(tmp_path, "# all of them are", json.dumps(value))


def test_comments_and_lines_of_other_programs_are_skipped(tmp_path: Path) -> None:
    foreign = ["[1]", "Starting server on :8000", '"text"', "# a comment", "  # another", "", "   "]
    reading = read(tmp_path, *foreign, json.dumps(said("a")), "INFO done", system="s")
    assert (questions(reading), reading.skipped, reading.errors) == (["a"], 8, [])
    plain = read(
        tmp_path, "# questions", "", "first", "#second", '{"like": "JSON"}', "[third]", system="s", format="prompts"
    )
    assert (questions(plain), plain.skipped) == (["first", '{"like": "JSON"}', "[third]"], 3)
    assert plain.requests[0].body["messages"][0] == {"role": "system", "content": "s"}
    common = '10.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "POST /v1/chat/completions HTTP/1.1" 200 512'
    with pytest.raises(InvalidRequest, match="is not JSON: add --format prompts"):
        read(tmp_path, common, common)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), min_size=1), max_size=6))
def test_only_line_feeds_separate_prompts(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    prompts = ["a" + text + "z" for text in texts]
    folder = tmp_path_factory.getbasetemp()
    if not prompts:
        return
    assert questions(read(folder, *prompts, format="prompts")) == list(
        dict.fromkeys(sorted(prompts, key=lambda p: -prompts.count(p)))
    )
    records = [json.dumps(said(prompt), ensure_ascii=False) for prompt in dict.fromkeys(prompts)]
    assert questions(read(folder, *records)) == list(dict.fromkeys(prompts))


@pytest.mark.parametrize("content", [b"", b"\n# only\n", b"\xff\xfe"])
def test_a_file_without_prompts_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"contains no requests|UTF-16"):
        read_file_requests(tmp_path / "file", read_text(tmp_path / "file"), "m", None)


@pytest.mark.parametrize(
    "body",
    [
        said("q") | {"tools": [{"type": "function"}], "temperature": 0},
        {"model": "m", "system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": []}] * 12},
        {"model": "m", "input": ["one", "two"]},
        {"model": "m", "input": [{"role": "user", "content": "q"}, {"type": "reasoning"}], "instructions": "i"},
        {"model": "m", "prompt": ["p"], "logit_bias": {"1": 2}},
        said("q") | {"tools": [{"name": str(index), "defer_loading": index % 5 > 0} for index in range(14)]},
    ],
)
def test_the_body_is_restored_from_the_regions_of_the_journal(body: dict[str, Json]) -> None:
    whole: dict[str, Json] = {"endpoint": "chat", "tenant": "t", "headers": {"openai-beta": "x"}, "query": "a=1"}
    assert request_body_of(as_object(loads(regions_as_json(whole | {"body": body})))) == body
