"""Predictions equal the reports of a real vLLM that offloads blocks to host memory, and publishes their events."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.engines.chats import Chats, PredictionClient, Tally
from tests.engines.conftest import Table
from tests.engines.running import PLAIN, Model, Vllm, running
from tests.engines.test_predictions import settings
from tests.servers import run_proxy

SMALL_POOL = Model("demo", None, ("--dtype", "float32", "--max-model-len", "2048", "--num-gpu-blocks-override", "66"))


def offloading(self_describing: bool) -> tuple[str, str]:
    extra = {
        "spec_name": "HostMemorySpec",
        "spec_module_path": "host_memory",
        "cpu_bytes_to_use": 60_000_000,
        "self_describing_kv_events": self_describing,
    }
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return "--kv-transfer-config", json.dumps(config)


@pytest.mark.parametrize("self_describing", [True, False], ids=["described", "hashes"])
def test_predictions_with_offloading(
    self_describing: bool,
    engines: Path,
    chats: int,
    seed: int,
    tmp_path: Path,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "vllm_offload"))
    vllm = Vllm(engines, SMALL_POOL, tmp_path / "vllm.log", *offloading(self_describing))
    source, tally, loaded = Chats(17 + seed, 1200), Tally(), 0
    with (
        running(vllm),
        run_proxy(settings(tmp_path / "proxy", vllm)) as (url, _),
        closing(PredictionClient(url, PLAIN.name, vllm)) as client,
    ):
        for _ in range(min(chats, 200)):
            client.wait_for_mirrors()
            chat = source.next()
            predicted = client.explain(chat)
            from_host = sum(predicted["tiers"].values())
            usage = client.ask(chat)
            reported = usage["prompt_tokens_details"]["cached_tokens"]
            tally.add(usage["prompt_tokens"], predicted["matched_tokens"] + from_host, reported)
            loaded += from_host
    table(
        f"vLLM with offloading, self-describing events {self_describing}", f"{tally}, {loaded} tokens from host memory"
    )
    assert tally.wrong == []
    assert loaded > 0
