"""The number of blocks that fit: the memory of a step is measured before the pool is allocated."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kvproxy.engine.attention.interface import AttentionOp
from kvproxy.engine.attention.sdpa_attention import SdpaDecode
from kvproxy.engine.attention.selector import SDPA
from kvproxy.engine.models.layer_groups import FULL_ATTENTION, LayerGroup
from kvproxy.engine.worker import memory_profiling as memory
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.engine.worker.memory_profiling import determine_num_blocks, profile_peak_memory
from kvproxy.engine.worker.model_runner import ModelRunner
from kvproxy.errors import SettingsError
from kvproxy.settings import EngineSettings
from tests.engine.models import CPU, tiny


class Meter:
    def __init__(self) -> None:
        self.log: list[Any] = []

    def start(self) -> None:
        self.log.append("start")

    def peak(self) -> int:
        self.log.append("peak")
        return 123


@pytest.mark.parametrize(("batch", "longest", "tokens"), [(64, None, 64), (2000, None, 512), (2000, 100, 100)])
def test_the_largest_step_is_what_is_measured(
    batch: int, longest: int | None, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter, compute = Meter(), ModelRunner.run_eager

    def spy(runner: ModelRunner, prefills: Any, decodes: Any, counts: Any) -> Any:
        meter.log.append([len(span.tokens) for span in prefills])
        return compute(runner, prefills, decodes, counts)

    def drawn(logits: torch.Tensor, params: Any, points: Any) -> list[Any]:
        meter.log.append(tuple(logits.shape))
        return []

    monkeypatch.setattr(ModelRunner, "run_eager", spy)
    monkeypatch.setattr(memory, "sample", drawn)
    settings = EngineSettings(max_num_batched_tokens=batch, max_model_len=longest, max_num_seqs=20, block_size=16)
    assert profile_peak_memory(tiny(), SDPA, settings, meter) == 123
    assert meter.log == ["start", [tokens], (20, 300), "peak"]


def test_what_graphs_keep_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Capturable(SdpaDecode):
        supports_capture = True

        def prepare(
            self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool, group: LayerGroup = FULL_ATTENTION
        ) -> AttentionOp:
            meter.log.append(tuple(table.shape))
            return super().prepare(table, lengths, pool, group)

    meter = Meter()
    backends = replace(SDPA, decode=Capturable())
    settings = EngineSettings(max_num_batched_tokens=64, max_num_seqs=3, num_speculative_tokens=2, block_size=16)
    assert profile_peak_memory(tiny(), backends, settings, meter) == 2 * 123
    # Nine rows of the model's 512 tokens, after the prompt.
    assert meter.log == ["start", "peak", "start", (9, 32), "peak"]


def test_blocks_follow_the_memory_allowed() -> None:
    loaded = tiny()
    block = loaded.shape.block_bytes(16, loaded.dtype)
    assert determine_num_blocks(loaded, SDPA, EngineSettings(kv_memory=10.5 * block)) == 10
    assert determine_num_blocks(loaded, SDPA, EngineSettings(num_blocks=7)) == 7
    with pytest.raises(SettingsError, match="raise kv_memory"):
        determine_num_blocks(loaded, SDPA, EngineSettings(kv_memory=1.5 * block))


@pytest.mark.parametrize(
    ("given", "name"), [({"num_blocks": 2**40}, "num_blocks"), ({"kv_memory": 2.0**60}, "kv_memory")]
)
def test_a_pool_that_the_host_has_no_memory_for_is_refused_at_the_start(given: dict[str, Any], name: str) -> None:
    with pytest.raises(SettingsError, match=f"of memory are free: lower engine.{name}"):
        determine_num_blocks(tiny(), SDPA, EngineSettings(**given))


def test_a_pool_beyond_all_memory_is_refused_with_its_size() -> None:
    shape = tiny().shape
    blocks = 2**40
    size = blocks * shape.block_bytes(16, torch.float32) / 2**30
    with pytest.raises(SettingsError, match=rf"needs {size:.1f} GiB, more than cpu has: lower num_blocks"):
        KVPool(shape, blocks, 16, torch.float32, CPU)
