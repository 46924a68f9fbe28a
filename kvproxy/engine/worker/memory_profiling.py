"""How many blocks fit the memory of a device, next to what a step computes with."""

from typing import Protocol

import torch

from kvproxy.engine.attention.selector import AttentionBackends
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.sampler.sampler import sample
from kvproxy.engine.scheduler.token_span import TokenSpan
from kvproxy.engine.worker.cuda_graphs import max_captured_rows, no_capture
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.engine.worker.model_runner import ModelRunner
from kvproxy.errors import SettingsError
from kvproxy.generation import SamplingParams
from kvproxy.settings import EngineSettings
from kvproxy.tiers.free_memory import free_memory

_MARGIN = 1.1
_OTHERS = 768 << 20
"""Bytes that are left for libraries' workspaces, for what graphs hold beside tensors, and for FAISS, which takes 256 MiB."""


class MemoryMeter(Protocol):
    """Measures a device's memory."""

    def start(self) -> None:
        """Begin to measure."""

    def peak(self) -> int:
        """Most bytes that were taken at any moment since."""


class CudaMemoryMeter:
    """By torch's own count."""

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
    """Blocks for the pool: as many as were asked for, or as fit `kv_memory`.

    Raises:
        SettingsError: too little memory is allowed or free.
    """
    block = loaded.shape.block_bytes(settings.block_size, loaded.dtype)
    if loaded.device.type == "cpu":
        _check_host(block, settings)
    if settings.num_blocks is not None:
        return settings.num_blocks
    allowed = _allowed(loaded, backends, settings)
    blocks = int(allowed // block)
    if blocks < 2:
        raise SettingsError(
            f"{allowed / 2**20:.0f} MiB for keys and values hold {max(0, blocks)} blocks of {settings.block_size} tokens: raise"
            " kv_memory, or lower max_batch_tokens"
        )
    return blocks


def _check_host(block: int, settings: EngineSettings) -> None:
    """Refuse a pool that the host has no memory for: the system gives it bit by bit, and would end the process in the middle.

    Raises:
        SettingsError: it does not fit.
    """
    if settings.num_blocks is not None:
        wanted, name = settings.num_blocks * block, "num_blocks"
    elif settings.kv_memory > 1:
        wanted, name = int(settings.kv_memory), "kv_memory"
    else:
        return
    free = free_memory()
    if wanted > free:
        raise SettingsError(
            f"engine.{name} asks for {wanted / 2**30:.1f} GiB for keys and values, and {free / 2**30:.1f} GiB of memory are"
            f" free: lower engine.{name}"
        )


def _allowed(loaded: LoadedModel, backends: AttentionBackends, settings: EngineSettings) -> float:
    """Bytes for the pool."""
    share, device = settings.kv_memory, loaded.device
    if share > 1:
        return share
    if device.type != "cuda":
        # On a CPU the memory is shared with everything else, so the share is taken of little: 4 GiB at the most.
        return share * min(free_memory(), 4 * 2**30)
    step = profile_peak_memory(loaded, backends, settings, CudaMemoryMeter(device))
    # What torch keeps from loading the model and from that step counts as free, so it is given back first.
    torch.cuda.empty_cache()
    return pool_bytes(torch.cuda.mem_get_info(device)[0], share, step)


def pool_bytes(free: int, share: float, step: int) -> float:
    """A share of the free bytes, but never what a step of `step` bytes and the other users need."""
    return min(share * free, free - _MARGIN * step - _OTHERS)


@torch.inference_mode()
def profile_peak_memory(
    loaded: LoadedModel, backends: AttentionBackends, settings: EngineSettings, meter: MemoryMeter
) -> int:
    """Bytes that steps take beside weights and pool, found by computing the largest ones over a small pool.

    These are a prompt of `max_batch_tokens` with draws for `max_sequences` rows, and the largest step that is captured: graphs
    keep what they compute with. Log-probabilities of a whole prompt may take more; a step that runs out of memory fails alone.
    """
    size = settings.block_size
    longest = min(settings.max_model_len or loaded.max_model_len, loaded.max_model_len)
    count = min(settings.max_batch_tokens, longest)
    blocks = list(range(1, 1 - (-count // size)))
    pool = KVPool(loaded.shape, len(blocks) + 1, size, loaded.dtype, loaded.device)
    runner = ModelRunner(loaded, pool, backends)
    rows = min(settings.max_sequences, count)
    params = SamplingParams(top_p=0.9, logprobs=0)
    meter.start()
    # What the groups write to the same blocks has no meaning here.
    tables = [blocks] * len(loaded.groups)
    (logits,) = runner.compute([TokenSpan([0] * count, 0, tables)], [], [rows])
    sample(logits, [params] * rows, [0.5] * rows)
    prompt = meter.peak()
    del logits
    if not (settings.cuda_graphs and backends.decode.capturable):
        return prompt
    most = max_captured_rows(settings)
    runner.capture(no_capture, most=most, longest=longest)
    meter.start()
    runner.replay([TokenSpan([0], 0, tables)] * most, [1] * most)
    return prompt + meter.peak()
