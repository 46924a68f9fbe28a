"""Predictions equal the reports of vLLM under eviction, and after resets, crashes, and late subscriptions."""

from contextlib import closing
from pathlib import Path

import httpx
import pytest

from kvproxy.settings import Settings, load_settings
from tests.engines.chats import Chats, PredictionClient, Tally
from tests.engines.conftest import Table
from tests.engines.running import HYBRID, PLAIN, Model, Vllm, running
from tests.polling import until
from tests.servers import run_proxy


def settings(data: Path, *engines: Vllm, **routing: object) -> Settings:
    told = {"health_interval": 0.5, "prediction_sample_rate": 1.0} | routing
    upstreams = [engine.upstream() for engine in engines]
    return load_settings(data=data, upstreams=upstreams, cache={"enabled": False}, routing=told)


def evictions(url: str) -> int:
    found: int = httpx.get(f"{url}/admin/blocks/stats").raise_for_status().json()["evictions"]
    return found


@pytest.mark.parametrize("model", [PLAIN, HYBRID], ids=lambda model: model.name)
def test_predictions_equal_reports(
    model: Model, engines: Path, chats: int, seed: int, tmp_path: Path, table: Table
) -> None:
    vllm = Vllm(engines, model, tmp_path / "vllm.log")
    source, tally, part = Chats(7 + seed, 1200 if model is PLAIN else 1000), Tally(), chats // 5
    with running(vllm):
        with (
            run_proxy(settings(tmp_path / "first", vllm)) as (url, _),
            closing(PredictionClient(url, model.name, vllm)) as client,
        ):
            client.run(source, part, tally)
            evicted = evictions(url)
            assert httpx.post(f"{url}/admin/blocks/reset").json()["reset"]
            client.run(source, part, tally)
        # No mirror follows meanwhile, so the next one needs a replay.
        with (
            run_proxy(settings(tmp_path / "second", vllm)) as (url, _),
            closing(PredictionClient(url, model.name, vllm)) as client,
        ):
            client.run(source, part, tally)
            last = source.next()
            client.ask(last)
            client.wait_for_mirrors()
            assert client.explain(last)["matched_tokens"] > 0
            vllm.kill()
            until(lambda: not client.upstreams()[0]["cached_blocks"])
            vllm.start()
            vllm.wait()
            until(lambda: client.upstreams()[0]["state"] == "up")
            client.run(source, part, tally)
            assert httpx.post(f"{url}/admin/blocks/reset").json()["reset"]
            client.run(source, chats - 4 * part, tally)
            evicted += evictions(url)
            (reuse,) = client.upstreams()[0]["reuse"].values()
    table(f"predictions, {model.name}", f"{tally}, {evicted} evictions seen")
    assert tally.wrong == []
    assert (reuse["too_high"], reuse["too_low"]) == (0, 0)
    assert reuse["predictions"] == reuse["exact"] > 0
    assert evicted > 0 or chats < 100


def test_predictions_with_two_engines(engines: Path, chats: int, seed: int, tmp_path: Path, table: Table) -> None:
    pair = [Vllm(engines, PLAIN, tmp_path / f"{number}.log") for number in range(2)]
    source, tally = Chats(11 + seed, 1200), Tally()
    with (
        running(*pair),
        run_proxy(settings(tmp_path / "proxy", *pair)) as (url, _),
        closing(PredictionClient(url, PLAIN.name, *pair)) as client,
    ):
        before = {engine.url: 0 for engine in pair}
        for _ in range(chats // 2):
            client.wait_for_mirrors()
            chat = source.next()
            told = client.explain(chat)["engines"]
            usage = client.ask(chat)
            now = {each["url"]: each["sent"] for each in client.upstreams()}
            (took,) = (name for name in now if now[name] > before[name])
            before, reported = now, usage["prompt_tokens_details"]["cached_tokens"]
            tally.add(usage["prompt_tokens"], told.get(took, 0), reported)
        figures = [reuse for each in client.upstreams() for reuse in each["reuse"].values()]
    table("predictions, two engines", f"{tally}; sent to each: {', '.join(map(str, before.values()))}")
    assert tally.wrong == []
    assert all(each["too_high"] == each["too_low"] == 0 for each in figures)
    assert sum(each["exact"] for each in figures) == tally.chats
    assert min(before.values()) > 0
