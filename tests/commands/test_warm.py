"""kvproxy warm: rate, report, and requests from a cache."""

import asyncio
import importlib
import json
import re
import signal
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.apis.api import ApiName
from kvproxy.operations.api_paths import PATHS, credential_headers
from kvproxy.operations.warm import WarmReport, WarmSource, read_file_requests, send_all
from tests.commands.run import ROOT, command, kvproxy, result, variables
from tests.commands.upstream import Upstream, proxied, said
from tests.polling import until
from tests.servers import run_upstream


def lines(file: Path, *values: Any) -> Path:
    file.write_text("\n".join(map(json.dumps, values)))
    return file


def test_warm_respects_the_rate_and_sends_the_api_key(tmp_path: Path) -> None:
    upstream = Upstream()
    values = [{"path": "/v1/messages", "body": said(f"q{number}")} for number in range(6)]
    file = lines(tmp_path / "x.jsonl", *values)
    requests = read_file_requests(file, file.read_text(), "m", None).requests
    report = WarmReport(WarmSource())
    with upstream.run() as url:
        began = time.monotonic()
        asyncio.run(send_all(requests, url, report, 4, 20.0, "key", None, {}, lambda share: None))
    assert report.outcomes["forwarded"] == 6
    # From the start, since a busy machine may deliver the first request late.
    assert max(moment for moment, _, _ in upstream.asked) - began >= 5 / 20
    assert {key for _, _, key in upstream.asked} == {"key"}


def test_a_column_of_questions_is_sent(tmp_path: Path) -> None:
    upstream = Upstream()
    (table := tmp_path / "faq.csv").write_text('id;question;answer\n1;"What; and\nwhy?";a\n2; ;b\n3;How?;c\n4;How?;d\n')
    rows = lines(tmp_path / "faq.jsonl", {"text": "Who?"}, {"text": 3}, {"other": "x"})
    with proxied(tmp_path / "data", upstream) as url:
        sent = result("warm", table, "--column", "question", "--concurrency", 1, url=url)
        assert upstream.questions() == ["How?", "What; and\nwhy?"]
        assert [sent[name] for name in ("total", "computed_and_stored", "duplicates", "skipped")] == [4, 2, 1, 1]
        assert result("warm", rows, "--column", "text", url=url)["skipped"] == 2
        wrong = kvproxy("warm", table, "--column", "questions", url=url)
        assert (wrong.returncode, "it has id, question, answer\n" in wrong.stderr) == (2, True)
        assert "--column is for a file" in kvproxy("warm", "--cache", "--column", "a", url=url).stderr
        assert "--column" in kvproxy("warm", table, url=url).stderr
    found = result("estimate", table, "--column", "question", "--data", tmp_path / "data")
    assert (found["log"]["requests"], found["log"]["skipped"]) == (3, {"blank": 1})


def test_answers_of_a_table_are_stored_without_a_model(tmp_path: Path) -> None:
    upstream = Upstream()
    (table := tmp_path / "faq.csv").write_text(
        "question,answer\nHow?,Like this.\nWhy?,Because.\nHow?,Like this.\nHow?,Otherwise.\nWhen?,\n{broken,a,b\n"
    )
    columns = ("--column", "question", "--answer-column", "answer", "--model", "m")
    with (
        proxied(tmp_path / "data", upstream, {"sampled_requests": "fresh"}, admin_token="t" * 32) as url,
        httpx.Client(base_url=url) as client,
    ):
        dry = kvproxy("warm", table, *columns, "--system", "s", "--dry-run", url=url)
        assert dry.stdout.endswith("answer: Like this.\nclients need temperature unset, max_tokens unset\n")
        assert "line 5: another answer to the question of line 2" in dry.stderr
        planned = result("warm", table, *columns, "--dry-run", url=url)
        assert [error["line"] for error in planned["failures"]] == [5, 7]
        assert planned["required"]["fields"] == {"temperature": None, "max_tokens": None}
        given = ("warm", table, *columns, "--api-key", "k", "--token", "t" * 32)
        sent = json.loads(kvproxy(*given, "--json", url=url).stdout)
        counts = {"total": 6, "answers_stored": 2, "exact_hits": 0, "duplicates": 1, "skipped": 1, "invalid": 2}
        assert {name: sent[name] for name in counts} == counts
        assert [error["line"] for error in sent["failures"]] == [5, 7]
        assert "another answer to the question of line 2" in sent["failures"][0]["message"]
        headers = {"authorization": "Bearer k"}
        hit = client.post("/v1/chat/completions", json=said("Why?"), headers=headers)
        assert ("; hit" in hit.headers["cache-status"], hit.json()["choices"][0]["message"]["content"]) == (
            True,
            "Because.",
        )
        assert "usage" not in hit.json()
        # Another tenant.
        assert "; hit" not in client.post("/v1/chat/completions", json=said("Why?")).headers["cache-status"]
        assert upstream.questions() == ["Why?"]
        again = json.loads(kvproxy(*given, "--json", url=url).stdout)
        assert (again["answers_stored"], again["exact_hits"]) == (0, 2)
        table.write_text("question,answer\nWhy?,Changed.\n")
        assert json.loads(kvproxy(*given, "--refresh", "--json", url=url).stdout)["answers_stored"] == 1
        hit = client.post("/v1/chat/completions", json=said("Why?"), headers=headers)
        assert hit.json()["choices"][0]["message"]["content"] == "Changed."
        sampled = kvproxy(*given, "--temperature", 1, url=url)
        assert (sampled.returncode, "not stored: The request has a temperature above 0" in sampled.stderr) == (1, True)
        assert kvproxy("warm", table, *columns, url=url).returncode != 0
        wrong = kvproxy("warm", table, "--answer-column", "answer", url=url)
        assert (wrong.returncode, "--answer-column needs --column" in wrong.stderr) == (2, True)
    assert upstream.questions() == []


def test_plain_http_loads_no_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise AssertionError("certificates were loaded")

    # aiohttp loads certificates when it is imported first.
    importlib.import_module("aiohttp")
    monkeypatch.setattr(ssl, "create_default_context", fail)
    with proxied(tmp_path) as url:
        assert kvproxy("warm", "-", "--format", "prompts", url=url, stdin=b"a question").returncode == 0
        assert kvproxy("doctor", "--data", tmp_path, url=url).returncode in (0, 1)


def test_the_most_valuable_entries_are_sent_first(tmp_path: Path) -> None:
    upstream, other = Upstream(), Upstream()
    with proxied(tmp_path, upstream) as url, other.run() as elsewhere, httpx.Client(base_url=url) as client:
        assert kvproxy("warm", "--cache", url=url).returncode == 3
        for question, times in (("once", 1), ("seldom", 2), ("a long question, often", 4), ("often", 4)):
            for _ in range(times):
                client.post("/v1/chat/completions", json=said(question))
        upstream.asked.clear()
        sent = result("warm", "--cache", "--from", url, "--concurrency", 1, url=elsewhere)
        assert sent["computed_not_stored"] == 3
        assert other.questions()[-1] == "seldom"
        fresh = result("warm", "--cache", "--top", 2, "--refresh", "--concurrency", 1, url=url)
        assert fresh["computed_and_stored"] == 2
        assert upstream.questions() == ["a long question, often", "often"]
    wrong = kvproxy("warm", url=url)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_refresh_renews_responses_of_the_own_tenant(tmp_path: Path) -> None:
    with proxied(tmp_path) as url:
        asked: list[tuple[ApiName, str]] = [("chat", "a"), ("messages", "a"), ("chat", "b")]
        for api, key in asked:
            for _ in range(2):
                body = said(f"{api} {key}", max_tokens=5)
                assert httpx.post(f"{url}{PATHS[api]}", json=body, headers=credential_headers(api, key)).is_success
        before = {entry["id"] for entry in result("cache", "ls", url=url)}
        done = kvproxy("warm", "--cache", "--refresh", "--api-key", "a", url=url)
        assert (done.returncode, done.stdout.split("\n")[1].split()[-1]) == (0, "2")
        last = done.stdout.splitlines()[-1]
        assert re.fullmatch(r"stored for tenant \w+, temperature unset, max_tokens 5", last), last
        assert done.stderr == "skipped 1 response of other tenants: give their key with --api-key\n"
        after = result("cache", "ls", url=url)
        assert len(after) == 3
        assert len(before & {entry["id"] for entry in after}) == 1
        none = kvproxy("warm", "--cache", "--refresh", url=url)
        assert (none.returncode, "of other tenants had one" in none.stderr) == (3, True)


@pytest.mark.parametrize("text", ["all", "none"])
def test_frequent_requests_of_the_journal_are_sent_first(tmp_path: Path, text: str) -> None:
    upstream = Upstream()
    with proxied(tmp_path, upstream, journal={"text": text}) as url, httpx.Client(base_url=url) as client:
        assert kvproxy("warm", "--from-log", url=url).returncode == 3
        for question, times, key in (("once", 1, "a"), ("often", 3, "a"), ("theirs", 4, "b")):
            for _ in range(times):
                body = said(question, temperature=0, user="ann")
                # Otherwise the journal could have all records before it knows which responses were stored.
                headers = credential_headers("chat", key) | {"cache-control": "confirm"}
                client.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()
        until(lambda: kvproxy("log", "--json", url=url).stdout.count("\n") == 8)
        arguments = ("warm", "--from-log", "--api-key", "a", "--concurrency", 1)
        assert result(*arguments, "--data", tmp_path, "--top", 1, url=url)["exact_hits"] == 1
        assert result(*arguments, "--top", 1, url=url)["exact_hits"] == 1
        # Stored requests are sent while their responses exist.
        upstream.asked.clear()
        refreshed = result(*arguments, "--refresh", url=url)
        assert refreshed["computed_and_stored"] == 2, refreshed
        assert upstream.questions() == ["often", "once"]
        result("cache", "rm", "--all", "--yes", url=url)
        done = kvproxy(*arguments, url=url)
        if text == "none":
            assert (done.returncode, "the journal has no text of 2 prompts" in done.stderr) == (3, True)
        else:
            assert done.returncode == 0, done.stderr
            body, headers = said("often", temperature=0, user="bob"), credential_headers("chat", "a")
            answer = client.post("/v1/chat/completions", json=body, headers=headers)
            assert "; hit" in answer.headers["cache-status"]


def test_requests_of_the_journal_are_sent_to_their_namespace_only(tmp_path: Path) -> None:
    upstream = Upstream()
    with proxied(tmp_path, upstream, journal={"text": "all"}) as url, httpx.Client(base_url=url) as client:
        for question, namespace in (("everywhere", {}), ("here", {"x-kvproxy-namespace": "shop"})):
            headers = namespace | {"cache-control": "confirm"}
            client.post("/v1/chat/completions", json=said(question), headers=headers).raise_for_status()
        until(lambda: kvproxy("log", "--json", url=url).stdout.count("\n") == 2)
        for options, question in (((), "everywhere"), (("--namespace", "shop"), "here")):
            upstream.asked.clear()
            done = kvproxy("warm", "--from-log", "--refresh", *options, url=url)
            assert "skipped 1 prompt of other namespaces: give theirs with --namespace" in done.stderr
            assert upstream.questions() == [question]
        none = kvproxy("warm", "--from-log", "--namespace", "other", url=url)
        assert (none.returncode, "those of other namespaces need --namespace" in none.stderr) == (3, True)


def test_requests_for_a_fresh_sample_are_sent_for_their_prefix_only(tmp_path: Path) -> None:
    upstream = Upstream()
    settings = {"cache": {"sampled_requests": "fresh"}, "journal": {"text": "all"}}
    with proxied(tmp_path, upstream, **settings) as url, httpx.Client(base_url=url) as client:
        for question, temperature in (("b", 1), ("b", 1), ("a", 0)):
            body = said(question, temperature=temperature)
            client.post("/v1/chat/completions", json=body, headers={"cache-control": "confirm"}).raise_for_status()
        until(lambda: kvproxy("log", "--json", url=url).stdout.count("\n") == 3)
        upstream.asked.clear()
        done = kvproxy("warm", "--from-log", "--json", url=url)
        report = json.loads(done.stdout)
        assert (report["total"], report["exact_hits"], report["skipped"]) == (2, 1, 1)
        assert "skipped 1 uncacheable prompt: a temperature above 0 (cache.sampled_requests)" in done.stderr
        assert not upstream.asked
        assert result("warm", "--from-log", "--prefix-only", "--concurrency", 1, url=url)["total"] == 2
        assert upstream.questions() == ["b", "a"]


def test_warming_is_no_hit_of_a_client_and_is_not_sent_again(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_text("a\nb\n")
    with proxied(tmp_path) as url, httpx.Client(base_url=url) as client:
        client.post("/v1/chat/completions", json=said("mine")).raise_for_status()
        for _ in range(2):
            assert result("warm", file, "--format", "prompts", "--concurrency", 1, url=url)["failed"] == 0
        until(lambda: kvproxy("log", "--json", url=url).stdout.count("\n") == 5)
        log = [json.loads(line) for line in kvproxy("log", "--json", url=url).stdout.splitlines()]
        assert [row["layer"] for row in log] == ["prefix", *["warming"] * 4]
        assert [row["reason"] for row in log[1:]] == ["prefix-100%"] * 2 + ["hit-exact"] * 2
        assert result("savings", url=url)["total"]["requests"] == 1
        assert [row["requests"] for row in result("log", "top", url=url)] == [1]
        assert result("warm", "--from-log", url=url)["total"] == 1
        assert result("cache", "stats", url=url)["hits"] == 0
        assert 'kvproxy_requests_total{endpoint="chat",layer="exact",status="200"} 0.0' in client.get("/metrics").text


def test_unreadable_lines_are_reported_and_the_rest_is_sent() -> None:
    upstream = Upstream()
    log = "\n".join(["# nightly", json.dumps(said("a")), '{"messages": [', "INFO: started", json.dumps(said("b"))])
    with upstream.run() as url:
        done = kvproxy("warm", "-", "--concurrency", 1, "--json", url=url, stdin=log.encode())
        assert upstream.questions() == ["a", "b"]
        assert (
            kvproxy(
                "warm", "-", "--format", "prompts", "--concurrency", 1, url=url, stdin=b"one\n# two\nthree\n"
            ).returncode
            == 0
        )
        assert upstream.questions() == ["one", "three"]
        same = kvproxy("warm", "-", url=url, stdin=log.encode() + b'\n{"messages": [' * 6)
    assert (same.returncode, same.stderr) == (
        1,
        "read as requests\n"
        "skipped 2 rows without a request: 1 comment, 1 not JSON (line 4)\n"
        "lines 3, 6, 7, 8, 9 and 2 more: this is not a JSON object"
        " (unexpected end of data: line 1 column 15 (char 14))\n",
    )
    counts = json.loads(done.stdout)
    assert (counts["computed_not_stored"], counts["skipped"], counts["invalid"], counts["failed"]) == (2, 2, 1, 0)
    assert counts["failures"] == [
        {"line": 3, "message": "this is not a JSON object (unexpected end of data: line 1 column 15 (char 14))"}
    ]


@pytest.mark.parametrize("top", [1, 9])
def test_each_line_is_in_one_count_and_a_failed_request_determines_no_field(tmp_path: Path, top: int) -> None:
    async def answer(request: Request) -> Response:
        if request.url.path.startswith("/admin/blocks"):
            return JSONResponse({"error": {"message": "no blocks"}}, 409)
        if b"failed" in await request.body():
            return JSONResponse({"error": {"message": "unknown model"}}, 404)
        return JSONResponse({}, headers={"cache-status": "kvproxy; fwd=uri-miss; stored"})

    values = [said("a"), said("failed", temperature=0.5), said("b"), said("a"), said("failed", temperature=0.5)]
    embedding = {"url": "/v1/embeddings", "body": {"model": "m", "input": "c"}}
    text = "\n".join(["# comment", "", *map(json.dumps, [*values, embedding]), '{"messages": [', "text", ""])
    (tmp_path / "file").write_text(text)
    with run_upstream(answer) as url:
        arguments = ("warm", tmp_path / "file", "--model", "m", "--prefix-only", "--keep", "--top", top, "--json")
        done = kvproxy(*arguments, url=url)
    report = json.loads(done.stdout)
    shown = {name: report[name] for name in ("computed_and_stored", "failed", "remaining", "not_pinned")}
    stored, failed, rest = (1, 0, 2) if top == 1 else (2, 1, 0)
    assert shown == {"computed_and_stored": stored, "failed": failed, "remaining": rest, "not_pinned": stored}
    assert {name: report[name] for name in ("duplicates", "skipped", "invalid")} == {
        "duplicates": 2,
        "skipped": 4,
        "invalid": 1,
    }
    names = list(report)
    assert sum(report[name] for name in names[1 : names.index("invalid") + 1]) == report["total"] == text.count("\n")
    assert report["required"]["varying"] == []
    assert "skipped 1 request for embeddings" in done.stderr


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("other; hit, kvproxy; fwd=bypass", 1),
        ('kvproxy; fwd=uri-miss; detail="not stored: private"', 1),
        ("kvproxy; fwd=uri-miss; stored", 0),
        ("kvproxy; hit", 0),
        ("", 0),
    ],
)
def test_warm_fails_if_the_cache_stores_nothing(status: str, code: int) -> None:
    with Upstream(headers={"cache-status": status} if status else None).run() as url:
        done = kvproxy("warm", "-", "--format", "prompts", url=url, stdin=b"one\ntwo")
        assert (done.returncode, "no response is stored" in done.stderr) == (code, bool(code))
        assert kvproxy("warm", "-", "--format", "prompts", "--prefix-only", url=url, stdin=b"one\ntwo").returncode == 0


def test_responses_that_are_not_stored_and_failures_are_named() -> None:
    async def answer(request: Request) -> Response:
        body = await request.body()
        if b"three" in body:
            return JSONResponse({"error": {"message": "no such user"}}, 422)
        stored = "" if b"two" in body else "; stored"
        return JSONResponse({}, headers={"cache-status": f"kvproxy; fwd=uri-miss{stored}"})

    with run_upstream(answer) as url:
        done = kvproxy("warm", "-", "--format", "prompts", "--model", "m", url=url, stdin=b"one\ntwo")
        failed = kvproxy("warm", "-", "--format", "prompts", "--model", "m", url=url, stdin=b"one\ntwo\nthree")
    told = "not stored: line 2: truncated, private, no-store, or excluded by a rule\n"
    assert (done.returncode, done.stderr) == (0, told)
    assert (failed.returncode, failed.stderr) == (1, f"{told}line 3: HTTP 422: no such user\n")


def test_an_interrupted_run_and_a_lost_server_print_the_counts(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"question {number}" for number in range(500)))
    upstream = Upstream(seconds=0.02)
    arguments = command("warm", prompts, "--format", "prompts", "--json", "--concurrency", 1)
    with upstream.run() as url:
        process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=variables(url, {})
        )
        until(lambda: len(upstream.asked) >= 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "interrupted: run the command again to continue\n")
    report = json.loads(out)
    assert 2 <= report["computed_not_stored"] < 500
    assert report["remaining"] == 500 - report["computed_not_stored"]
    done = kvproxy("warm", prompts, "--format", "prompts", "--json", "--model", "m", url=url)
    assert (done.returncode, json.loads(done.stdout)["remaining"]) == (4, 500)
    assert "stopped answering" in done.stderr


def test_a_client_with_the_same_fields_and_tenant_hits_warmed_responses(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_text("What is a block?\nWhat is LRU?\nWhat is a block?\n")
    with proxied(tmp_path / "data") as url:
        options = ["--temperature", 0, "--max-tokens", 50, "--body", "seed=7", "--header", "OpenAI-Project: alpha"]
        done = kvproxy("warm", file, "--format", "prompts", "--model", "m", *options, url=url)
        assert done.returncode == 0, done.stderr
        facts = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[:-1])
        assert (facts["Total"], facts["Duplicates"]) == ("3", "1")
        assert facts["Prompt tokens"] == str(len("What is a block?") + len("What is LRU?"))
        assert "Tokens pinned" not in facts
        assert "temperature 0, max_tokens 50, seed 7" in done.stdout
        body = said("What is LRU?", temperature=0, max_tokens=50, seed=7)
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"openai-project": "alpha"})
        assert "hit" in answer.headers["cache-status"]
        tenant = httpx.get(f"{url}/admin/cache").json()[0]["tenant"]
        assert f"stored for tenant {tenant}," in done.stdout
        fields = {"temperature": 0, "max_tokens": 50, "seed": 7}
        required = result("warm", file, "--format", "prompts", "--model", "m", *options, url=url)["required"]
        assert required == {"tenants": [tenant], "fields": fields, "varying": []}
    for wrong in (["--body", "seed"], ["--body", "seed=x y"], ["--header", "novalue"]):
        done = kvproxy("warm", file, "--format", "prompts", "--model", "m", *wrong)
        assert (done.returncode, "such as" in done.stderr) == (2, True)
