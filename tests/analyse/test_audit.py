"""Audits of engines with equal and different warm responses, and of one without reports."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from kvproxy.settings import load_settings
from tests.commands.run import Demo, kvproxy, result
from tests.servers import run_app, run_proxy


@pytest.mark.parametrize("repairs", [True, False])
def test_audits_of_the_embedded_engine(repairs: bool, tmp_path: Path) -> None:
    settings = load_settings(
        data=tmp_path,
        engine={"num_blocks": 256, "max_num_batched_tokens": 64, "batch_invariant": True},
        cache={"semantic": False},
        rules=({"name": "agents", "repair_history": repairs},),
    )
    with run_proxy(settings) as (url, _):
        told = result("audit", url, "--requests", 1, "--max-tokens", 4)
        history = kvproxy("audit", url, "--history", "--requests", 1, "--max-tokens", 8).stdout
    assert (told["pairs"], told["proven"], told["flips"]) == (1, 1, 0)
    assert f"{0 if repairs else 1} of 1 changed responses differ from the original response" in history


def test_requests_of_a_file_are_sent(demo: Demo, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"{number} What is a block, and how is it named by its hash?\n" for number in range(2)))
    done = kvproxy("audit", demo[0], "--file", file, "--format", "prompts", "--max-tokens", 4)
    assert (done.returncode, done.stdout.split(" warm")[0]) == (0, "0 of 2")
    file.write_text('{"prompt": "What is a block?"}\n{"prompt": "Wha')
    refused = kvproxy("audit", demo[0], "--file", file).stderr
    assert "contains no chat completion" in refused
    assert "skipped 1 row without a request: 1 malformed\n" in refused


@contextmanager
def engine(reports: bool, flips_at: int | None, knows_scores: bool = True) -> Iterator[str]:
    """An engine whose warm answers differ from one token on."""
    seen: set[str] = set()

    async def models(_: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": "m"}]})

    async def answer(request: Request) -> JSONResponse:
        body = await request.json()
        if "logprobs" in body and not knows_scores:
            return JSONResponse({"error": {"message": "no logprobs"}}, 400)
        warm = body["cache_salt"] in seen
        seen.add(body["cache_salt"])
        tokens = [f" w{place}" for place in range(8)]
        if warm and flips_at is not None:
            tokens[flips_at] = " other"
        usage = {"prompt_tokens": 40}
        if reports:
            usage |= {"prompt_tokens_details": {"cached_tokens": 32 if warm else 0}}
        scores = {"content": [{"token": token} for token in tokens]} if "logprobs" in body else None
        message = {"role": "assistant", "content": "".join(tokens)}
        return JSONResponse({"choices": [{"message": message, "logprobs": scores}], "usage": usage})

    routes = [Route("/v1/models", models), Route("/v1/chat/completions", answer, methods=["POST"])]
    with run_app(Starlette(routes=routes)) as url:
        yield url


@pytest.mark.parametrize("knows_scores", [True, False])
def test_a_difference_is_reported_with_its_token(knows_scores: bool) -> None:
    with engine(reports=True, flips_at=5, knows_scores=knows_scores) as url:
        done = kvproxy("audit", url, "--requests", 4, "--json", "--concurrency", 2)
        shown = kvproxy("audit", url, "--requests", 4)
    told = json.loads(done.stdout)
    assert (told["proven"], told["flips"], done.returncode) == (4, 4, 1)
    assert {each["token"] for each in told["differ"]} == {5 if knows_scores else 6}
    assert told["interval"][0] > 0.5
    assert "4 of 4 warm responses differ" in shown.stdout


def test_pairs_without_reports_are_not_counted() -> None:
    with engine(reports=False, flips_at=None) as url:
        done = kvproxy("audit", url, "--requests", 2)
    assert done.returncode == 1
    assert "no reuse was proven in 2 pairs" in done.stderr
    nobody = kvproxy("audit", "http://127.0.0.1:9", "--model", "m", "--requests", 1)
    assert nobody.returncode != 0
    assert "does not answer" in nobody.stderr
