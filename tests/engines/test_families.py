"""The table of truth: for each family of models, predictions equal the reports of a real vLLM."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.engines.chats import Chats, PredictionClient, Tally
from tests.engines.conftest import Table
from tests.engines.running import Model, Vllm, running
from tests.engines.test_predictions import evictions, settings
from tests.servers import run_proxy

SMALL = ("--max-model-len", "2048", "--enable-prefix-caching")
STATES = (*SMALL, "--mamba-cache-mode", "align")
FAMILIES = {
    "qwen3": ("full attention", SMALL, 96),
    "mistral": ("sliding windows", SMALL, 96),
    "gemma3": ("sliding windows and full attention", SMALL, 200),
    "qwen3_next": ("gated delta nets and full attention", STATES, 200),
    "lfm2": ("short convolutions and full attention", STATES, 200),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_predictions_for_each_family(
    name: str, engines: Path, chats: int, seed: int, tmp_path: Path, table: Table
) -> None:
    layers, flags, blocks = FAMILIES[name]
    model = Model(name, f"families/{name}", (*flags, "--num-gpu-blocks-override", str(blocks)))
    vllm, tally = Vllm(engines, model, tmp_path / "vllm.log"), Tally()
    with (
        running(vllm),
        run_proxy(settings(tmp_path / "proxy", vllm)) as (url, _),
        closing(PredictionClient(url, name, vllm)) as client,
    ):
        client.run(Chats(13 + seed, 1200), min(chats, 200), tally)
        evicted = evictions(url)
    table(f"vLLM, {name}: {layers}", f"{tally}, {evicted} evictions seen")
    assert tally.wrong == []
    assert tally.reused > 0
