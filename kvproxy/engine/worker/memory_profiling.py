"""Determines how many blocks fit into memory."""

import torch

from kvproxy.apis.codecs.generation import SamplingParams
from kvproxy.engine.attention.selector import AttentionBackends
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.sampler import sample
from kvproxy.engine.scheduler.scheduler_output import TokenSpan
from kvproxy.engine.worker.cuda_graphs import max_captured_rows, no_capture
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.engine.worker.model_runner import ModelRunner
from kvproxy.errors import SettingsError
from kvproxy.settings import EngineSettings
from kvproxy.tiers.free_memory import free_memory

_STEP_MARGIN = 1.1
_RESERVED_BYTES = 768 << 20  # for library workspaces, CUDA graphs, and 256 MiB for the response cache's FAISS index
_MAX_CPU_SHARE_BASE = 4 << 30


class CudaMemoryMeter:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def start(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - self._before


def determine_num_blocks(loaded: LoadedModel, backends: AttentionBackends, settings: EngineSettings) -> int:
    """Return `settings.num_blocks`; if it is None, the number of blocks that fit into `settings.kv_memory`."""
    block_bytes = loaded.shape.block_bytes(settings.block_size, loaded.dtype)
    if loaded.device.type == "cpu":
        _check_host_memory(block_bytes, settings)
    if settings.num_blocks is not None:
        return settings.num_blocks
    available = _available_bytes(loaded, backends, settings)
    num_blocks = int(available // block_bytes)
    if num_blocks < 2:
        raise SettingsError(
            f"{available / 2**20:.0f} MiB for keys and values hold {max(0, num_blocks)} blocks of {settings.block_size}"
            " tokens: raise kv_memory, or lower max_num_batched_tokens"
        )
    return num_blocks


def _check_host_memory(block_bytes: int, settings: EngineSettings) -> None:
    required, name, free = int(settings.kv_memory), "kv_memory", free_memory()
    if settings.num_blocks is not None:
        required, name = settings.num_blocks * block_bytes, "num_blocks"
    if required > free:
        raise SettingsError(
            f"engine.{name} requires {required / 2**30:.1f} GiB for keys and values, but {free / 2**30:.1f} GiB of memory are"
            f" free: lower engine.{name}"
        )


def _available_bytes(loaded: LoadedModel, backends: AttentionBackends, settings: EngineSettings) -> float:
    share, device = settings.kv_memory, loaded.device
    if share > 1:
        return share
    if device.type != "cuda":
        return share * min(free_memory(), _MAX_CPU_SHARE_BASE)
    step_bytes = profile_peak_memory(loaded, backends, settings, CudaMemoryMeter(device))
    # Return torch's cached memory to the device, so that it counts as free.
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return min(share * free, free - _STEP_MARGIN * step_bytes - _RESERVED_BYTES)


@torch.inference_mode()
def profile_peak_memory(
    loaded: LoadedModel, backends: AttentionBackends, settings: EngineSettings, meter: CudaMemoryMeter
) -> int:
    """Return the peak memory of a step in bytes, without weights, pool, and prompt log-probabilities."""
    block_size = settings.block_size
    max_len = min(settings.max_model_len or loaded.max_model_len, loaded.max_model_len)
    num_tokens = min(settings.max_num_batched_tokens, max_len)
    blocks = list(range(1, 1 - (-num_tokens // block_size)))
    pool = KVPool(loaded.shape, len(blocks) + 1, block_size, loaded.dtype, loaded.device)
    runner = ModelRunner(loaded, pool, backends)
    num_rows = min(settings.max_num_seqs, num_tokens)
    params = SamplingParams(top_p=0.9, logprobs=0)
    meter.start()
    # All groups write to the same blocks; the values are not used.
    tables = [blocks] * len(loaded.groups)
    (logits,) = runner.run_eager([TokenSpan([0] * num_tokens, 0, tables)], [], [num_rows])
    sample(logits, [params] * num_rows, [0.5] * num_rows)
    prompt_peak = meter.peak()
    del logits
    if not (settings.cuda_graphs and backends.decode.supports_capture):
        return prompt_peak
    max_rows = max_captured_rows(settings)
    runner.capture(no_capture, max_rows=max_rows, max_len=max_len)
    meter.start()
    runner.run_captured([TokenSpan([0], 0, tables)] * max_rows, [1] * max_rows)
    return prompt_peak + meter.peak()
