"""Large block pools, the memory of a step, and page-locked chunks of 32 MiB."""

import time

import torch

from tests.gpu import seven
from tests.gpu.check import Check, Figures, Missed, NotHere
from tests.gpu.scale import scale_of


def large_pool(device: torch.device) -> Figures:
    from kvproxy.engine.attention.interface import ScoreOptions
    from kvproxy.engine.attention.selector import select_backends
    from kvproxy.engine.worker.kv_pool import KVPool, KVShape

    shape = scale_of(device).shape
    element = 16 * shape.kv_heads * shape.head_dim
    blocks = (1 << 31) // element + 64 if device.type == "cuda" else 200
    if device.type == "cuda" and 2 * 2 * blocks * element > 0.8 * torch.cuda.mem_get_info(device)[0]:
        raise NotHere("a pool of 2^31 elements a layer does not fit this GPU")
    pool = KVPool(KVShape(1, shape.kv_heads, shape.head_dim), blocks, 16, torch.bfloat16, device)
    low, high = list(range(1, 33)), list(range(blocks - 32, blocks))
    pool.data[:, :, 1:33] = torch.randn_like(pool.data[:, :, 1:33])
    pool.copy_blocks(list(zip(low, high, strict=True)))
    # As the model's layers write their keys.
    rows = torch.randn(16, *pool.data.shape[4:], device=device, dtype=torch.bfloat16)
    for block in (low[3], high[3]):
        pool.layers[0][0].view(-1, *rows.shape[1:])[torch.arange(16, device=device) + block * 16] = rows
    query = torch.randn(1, shape.heads, shape.head_dim, device=device, dtype=torch.bfloat16)
    decode = select_backends(device, torch.bfloat16, shape.head_dim).decode

    def attended(table: list[int]) -> torch.Tensor:
        rows = torch.tensor([table], dtype=torch.int32, device=device)
        return decode.prepare(rows, torch.tensor([500], device=device), pool)(
            query, pool.layers[0], pool.layers[0], ScoreOptions()
        )

    out = torch.empty((1, 2, 32, *pool.data.shape[3:]), dtype=torch.bfloat16, pin_memory=device.type == "cuda")
    pool.read_blocks(high, out)()
    figures = {"elements of a layer's keys": f"{blocks * element:,}", "attention": type(decode).__name__}
    for what, same in (
        ("copied or written", torch.equal(pool.data[:, :, low], pool.data[:, :, high])),
        ("read", torch.equal(out, pool.data[:, :, low].cpu())),
        ("attended to", torch.equal(attended(low), attended(high))),
    ):
        if not same:
            raise Missed(f"the last blocks are {what} differently from the first", figures)
    return figures


def peak_memory(device: torch.device) -> Figures:
    from kvproxy.engine.attention.selector import select_backends
    from kvproxy.engine.core import EngineCore
    from kvproxy.engine.worker.memory_profiling import CudaMemoryMeter, profile_peak_memory
    from kvproxy.settings import EngineSettings

    if device.type != "cuda":
        raise NotHere("memory is measured on CUDA")
    seven.free()
    loaded = seven.model(device)
    settings = EngineSettings(kv_memory=0.9, max_num_batched_tokens=8192)
    backends = select_backends(device, loaded.dtype, loaded.shape.head_dim)
    expected = profile_peak_memory(loaded, backends, settings, CudaMemoryMeter(device))
    engine = EngineCore(loaded, settings)
    meter = CudaMemoryMeter(device)
    meter.start()
    seven.answer(engine, seven.random_tokens(device, 8192))
    free, total = torch.cuda.mem_get_info(device)
    figures = {
        "largest step": f"{meter.peak() / 2**30:.2f} GiB, measured before {expected / 2**30:.2f}",
        "blocks": f"{engine.manager.pool.num_blocks:,}",
        "left": f"{free / 2**30:.2f} of {total / 2**30:.1f} GiB",
    }
    if meter.peak() > 1.1 * expected:
        raise Missed("a step takes more than was measured for it", figures)
    return figures


SAVING_GOAL = 1.2
"""Most that a new prompt may take whose chunks are saved, next to one without tiers, once the host's memory is page-locked."""


def large_chunks(device: torch.device) -> Figures:
    scale = scale_of(device)
    chunks = scale.context // scale.chunk
    step = {"max_num_batched_tokens": scale.context // 4}
    prompts = [seven.random_tokens(device, scale.context + 1) for _ in range(3)]
    plain = seven.engine(device, 4 * scale.context, **step)
    alone = [seven.answer(plain, prompt, 2)[1] for prompt in prompts][1]
    plain.close()
    del plain
    engine = seven.engine(device, 4 * scale.context, {"host": scale.locked, "chunk_tokens": scale.chunk}, **step)
    arena = engine.tiers._transfer._buffers
    first, _ = seven.answer(engine, prompts[0], 2)
    assert engine.tiers.chain.flush(60)
    _, saving = seven.answer(engine, prompts[1], 2)
    began = time.perf_counter()
    assert engine.tiers.chain.flush(60)
    settled = time.perf_counter() - began
    engine.manager.reset_prefix_cache()
    again, loading = seven.answer(engine, prompts[0], 2)
    (host,) = engine.tiers.chain.stats()
    held = host.bytes / max(1, host.chunks)
    figures = {
        "chunks": f"{host.chunks} of {2 * chunks} saved, {held / 2**20:.1f} MiB each, {host.hits} loaded, {host.dropped} dropped",
        "a new prompt": f"{saving:.3f} s, without tiers {alone:.3f} s, and {settled:.3f} s until all was put away",
        "from the tier": f"{loading:.3f} s, {host.bytes_loaded / loading / 1e9:.1f} GB/s",
        "page-locked": "nothing"
        if arena is None
        else f"{arena.allocated / 2**30:.2f} GiB for {host.bytes / 2**30:.2f}",
    }
    engine.close()
    if host.chunks != 2 * chunks or host.hits != chunks:
        raise Missed(f"{host.chunks} chunks saved and {host.hits} loaded, of {chunks}", figures)
    if first != again:
        raise Missed("answers differ after a reload", figures)
    if arena is not None and arena.allocated > scale.locked:
        raise Missed("page-locked memory is more than was set", figures)
    if scale.judged and saving > SAVING_GOAL * alone:
        raise Missed(f"saving chunks takes {saving / alone:.2f} times as long as a prompt without tiers", figures)
    return figures


CHECKS = (
    Check("a pool beyond 2^31 elements a layer", 40, large_pool, rehearsed=True),
    Check("a step's memory beside a large pool, 7B", 60, peak_memory),
    Check("chunks of 32 MiB there and back, 7B", 60, large_chunks, rehearsed=True),
)
