"""A fleet with an engine that publishes events and a llama.cpp server."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.commands.run import kvproxy
from tests.upstreams.fleets import chat
from tests.upstreams.llama.fake_server import template
from tests.upstreams.mixed_fleets import IN_LLAMA, IN_VLLM, Mixed, run_mixed


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    with run_mixed(tmp_path) as running:
        yield running


def test_both_kinds_are_shown(mixed: Mixed) -> None:
    blocks = mixed.get("/blocks")
    assert {block["engine"] for block in blocks} == {mixed.llama, mixed.vllm}
    assert {chain["engine"] for chain in mixed.get("/blocks/chains")} == {mixed.llama, mixed.vllm}
    stats = mixed.get("/blocks/stats")
    assert (stats["cached"], stats["slots"], stats["complete"]) == (6, True, True)
    (slot,) = [block for block in blocks if block["id"] is not None and block["hash"]]
    assert IN_LLAMA in mixed.get(f"/blocks/{slot['hash']}")["text"]
    (first, *_) = [block for block in blocks if block["engine"] == mixed.vllm]
    assert mixed.get(f"/blocks/{first['hash']}")["engine"] == mixed.vllm

    held = mixed.explain(IN_VLLM + "x")
    assert (held["engine"], held["matched_tokens"], held["prompt_tokens"]) == (mixed.vllm, 96, len(IN_VLLM) + 1)
    held = mixed.explain(IN_LLAMA + "x")
    assert held["engine"] == mixed.llama
    assert held["matched_tokens"] == held["engines"][mixed.llama] == len(template(chat(IN_LLAMA)["messages"])) - 12
    assert held["engines"][mixed.vllm] == 0

    shown = kvproxy("blocks", url=mixed.url).stdout
    assert "6 cached blocks" in shown
    assert "slot 0" in shown
    assert mixed.vllm not in shown.partition("first_text")[2]

    metrics = httpx.get(f"{mixed.url}/metrics").text
    assert f'kvproxy_llama_cpp_slots{{upstream="{mixed.llama}"}} 2.0' in metrics
    assert f'kvproxy_llama_cpp_restores_total{{upstream="{mixed.llama}"}} 0.0' in metrics
    assert 'kvproxy_upstream_cached_blocks{upstream="' + mixed.vllm in metrics


def test_requests_follow_their_prefix_and_a_reset_empties_all(mixed: Mixed) -> None:
    for question in "abc":
        mixed.ask(IN_VLLM + question).raise_for_status()
    assert mixed.engine.got == [IN_VLLM + question for question in "abc"]
    assert mixed.get("/blocks/queue") == []
    assert httpx.get(f"{mixed.url}/admin/blocks/pins").status_code == 409
    done = mixed.post("/blocks/reset").json()
    assert {each["engine"]: each["reset"] for each in done["engines"]} == {mixed.llama: True, mixed.vllm: True}
    assert mixed.engine.resets == 1
    assert mixed.explain(IN_LLAMA)["matched_tokens"] == mixed.explain(IN_VLLM)["matched_tokens"] == 0
