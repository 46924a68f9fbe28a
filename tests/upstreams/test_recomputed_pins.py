"""Pins on engines without pins: evicted blocks are computed again, within a budget."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.settings import load_settings
from kvproxy.upstreams import recomputed_pins
from tests.commands.run import kvproxy, result
from tests.polling import until
from tests.servers import run_proxy
from tests.upstreams.fleets import SIZE, Engine, block_hashes, run_engine


class PinEngine(Engine):
    """An engine that computes prompts, publishes their blocks, and can evict them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = self.sockets.model
        self.computed: list[int] = []
        self.app.routes.append(Route("/v1/completions", self.complete, methods=["POST"]))

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        if self.mood == "refuses":
            return JSONResponse({"error": {"message": "no token ids here"}}, 400)
        assert body["max_tokens"] == 1
        return JSONResponse({"choices": [], "usage": self.compute(body["prompt"])})

    async def chat(self, request: Request) -> Response:
        text = "".join(message["content"] for message in (await request.json())["messages"])
        return JSONResponse({"choices": [], "usage": self.compute(list(text.encode()))})

    def compute(self, tokens: list[int]) -> dict[str, Any]:
        names = block_hashes(tokens)
        known = 0
        while known < len(names) and self.model.held[names[known]]:
            known += 1
        if names[known:] and self.mood != "forgets":
            parent = names[known - 1] if known else None
            run = tokens[known * SIZE : len(names) * SIZE]
            self.sockets.send(self.model.store(names[known:], parent=parent, tokens=run))
        self.computed.append(len(tokens) - known * SIZE)
        return {"prompt_tokens": len(tokens), "prompt_tokens_details": {"cached_tokens": known * SIZE}}

    def evict(self, names: list[int]) -> None:
        self.sockets.send(self.model.remove(names))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> PinEngine:
    monkeypatch.setattr(recomputed_pins, "_INTERVAL", 0.02)
    return PinEngine()


@pytest.fixture
def url(engine: PinEngine, tmp_path: Path) -> Iterator[str]:
    with run_engine(engine) as (_, server):
        routing = {"pinned_tokens_per_minute": 400, "health_interval": 0.2}
        with run_proxy(load_settings(data=tmp_path / "data", upstreams=[server], routing=routing)) as (proxy, _):
            engine.compute(list(b"so that the size of a block is known"))
            until(lambda: result("blocks", "stats", url=proxy)["block_size"] == SIZE)
            yield proxy


PROMPT = "a handbook of rules " * 8  # 160 bytes: ten blocks.


def row(url: str) -> dict[str, Any]:
    (found,) = result("blocks", "pins", url=url)
    assert isinstance(found, dict)
    return found


def test_evicted_blocks_are_computed_again(engine: PinEngine, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputed_pins, "_FIRST_PAUSE", 0.1)
    # A prompt that is not cached yet is computed.
    done = result("blocks", "pin", "rules", PROMPT, url=url)
    assert done["tokens"] == 160
    until(lambda: row(url)["held"] == 160)
    assert engine.computed[1:] == [160]
    until(lambda: row(url)["error"] is None)
    engine.evict(block_hashes(list(PROMPT.encode()))[6:])
    until(lambda: len(engine.computed) == 3 and row(url)["held"] == 160)
    assert engine.computed[2] == 4 * SIZE
    assert (row(url)["computed"], row(url)["blocks"]) == (160 + 64, [])
    shown = kvproxy("blocks", "pins", url=url).stdout
    assert "Cached" in shown
    assert "224" in shown
    assert "unpinned rules" in kvproxy("blocks", "unpin", "rules", url=url).stdout
    assert kvproxy("blocks", "unpin", "rules", url=url).returncode == 3


def test_the_budget_limits_computation_and_is_shown(
    engine: PinEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputed_pins, "_FIRST_PAUSE", 0.05)
    result("blocks", "pin", "rules", PROMPT, url=url)
    names = block_hashes(list(PROMPT.encode()))
    until(lambda: row(url)["held"] == 160)
    engine.evict(names)
    until(lambda: len(engine.computed) == 3 and row(url)["held"] == 160)
    # 320 of 400 tokens are spent.
    engine.evict(names)
    until(lambda: "budget" in (row(url)["error"] or ""))
    assert "pinned_tokens_per_minute" in kvproxy("blocks", "pins", url=url).stdout
    assert len(engine.computed) == 3


def test_a_small_pool_is_shown_and_not_flooded(engine: PinEngine, url: str) -> None:
    engine.mood = "forgets"
    result("blocks", "pin", "rules", PROMPT, url=url)
    until(lambda: len(engine.computed) == 2)
    assert row(url)["held"] == 0
    engine.mood = "refuses"
    result("blocks", "pin", "rules", PROMPT, url=url)
    until(lambda: "answered 400" in (row(url)["error"] or ""))
    assert len(engine.computed) == 2


def test_leaves_ttls_and_invalid_pins(engine: PinEngine, url: str) -> None:
    (chain,) = result("blocks", "chains", url=url)
    assert result("blocks", "pin", "leaf", "--leaf", chain["leaf"][:8], "--ttl", "3600", url=url)["tokens"] == 2 * SIZE
    assert 3500 < row(url)["seconds_left"] <= 3600
    until(lambda: row(url)["held"] == 2 * SIZE)
    assert len(engine.computed) == 1
    for arguments, word in (
        (("x", "short"), "shorter than a block"),
        (("x", "--leaf", "ffffffffffff"), "blocks chains"),
    ):
        done = kvproxy("blocks", "pin", *arguments, url=url)
        assert done.returncode != 0
        assert word in done.stderr
    result("blocks", "pin", "leaf", PROMPT, "--ttl", "0.05", url=url)
    until(lambda: result("blocks", "pins", url=url) == [])


def test_warm_pins_all_prompts_of_a_file(engine: PinEngine, url: str, tmp_path: Path) -> None:
    requests = tmp_path / "questions.jsonl"
    lines = [
        {"model": "m", "messages": [{"role": "user", "content": text * 12}]}
        for text in ("What is this? ", "And that? ")
    ]
    lines.append({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = kvproxy("warm", requests, "--prefix-only", "--keep", "--json", url=url)
    report = json.loads(done.stdout)
    # The last prompt fills no block, so it is not pinned.
    assert done.returncode == 1
    assert [(failure["line"], "not pinned" in failure["message"]) for failure in report["failures"]] == [(3, True)]
    assert report["tokens_pinned"] == 160 + 112
    assert [pin["name"] for pin in result("blocks", "pins", url=url)] == [f"{requests}:1", f"{requests}:2"]
