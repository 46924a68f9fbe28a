"""How near the device's own limits the engine comes, each limit measured in the same run.

The model has the shape of a 7B one (32 layers, 4096 wide, 32 heads over 8) and random bfloat16 weights.
"""

import gc
import itertools
import statistics
import time
from functools import cache
from typing import Any

import torch

from tests.gpu.check import Check, Figures, Missed, NotHere
from tests.gpu.floors import copy_bandwidth, matmul_rate, seconds

GOAL = 1.3
"""Most that a warm first token may take, next to that of its suffix alone."""
_VOCABULARY = 32_000
_numbers = itertools.count()


def limits(device: torch.device) -> Figures:
    """The floors."""
    return {
        "copy": f"{copy_bandwidth(device) / 1e9:.0f} GB/s read and written",
        "bfloat16 matmul": f"{matmul_rate(device) / 1e12:.0f} TFLOP/s",
    }


def decode_bandwidth(device: torch.device) -> Figures:
    """Bytes of keys and values that the decode kernels read in a second, against a copy."""
    from kvproxy.engine.attention.triton_decode import TritonDecode

    floor = copy_bandwidth(device)
    figures: Figures = {}
    for rows, context in ((1, 32_768), (8, 8192), (64, 2048), (64, 8192)):
        rate = _decode_rate(TritonDecode(), rows, context, device)
        figures[f"{rows} x {context}"] = f"{rate / 1e9:.0f} GB/s, {rate / floor:.2f} of a copy"
    variants = {
        (most, warps, stages): _decode_rate(TritonDecode(most, warps=warps, stages=stages), 64, 2048, device)
        for most in (16, 64)
        for warps in (2, 4, 8)
        for stages in (1, 2, 3, 4)
    }
    (most, warps, stages), rate = max(variants.items(), key=lambda item: item[1])
    figures["best variant, 64 x 2048"] = (
        f"{rate / floor:.2f} of a copy with {most} stretches, {warps} warps, {stages} stages"
    )
    return figures


def _decode_rate(backend: Any, rows: int, context: int, device: torch.device) -> float:
    from kvproxy.engine.pool import KVPool, KVShape

    pool = _pool(rows * context // 16 + 1, device, KVPool, KVShape)
    table = (torch.randperm(rows * context // 16, device=device) + 1).view(rows, -1).int()
    query = torch.randn(rows, 32, 128, device=device, dtype=torch.bfloat16)
    attend = backend.prepare(table, torch.full((rows,), context, device=device), pool)
    layer = pool.layer(0)
    return rows * context * 2 * 8 * 128 * 2 / seconds(lambda: attend(query, layer, layer, None))


@cache
def _pool(blocks: int, device: torch.device, pool: Any, shape: Any) -> Any:
    made = pool(shape(1, 8, 128), blocks, 16, torch.bfloat16, device)
    made.data.normal_()
    return made


@cache
def seven_billion(device: torch.device) -> Any:
    """The random model, made on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from kvproxy.engine import attention
    from kvproxy.engine.models import prepare
    from tests.engine.models import LetterTokenizer

    if torch.cuda.mem_get_info(device)[0] < 22 << 30:
        raise NotHere("a 7B model takes 22 GiB of free GPU memory")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=16_384,
        eos_token_id=None,
        bos_token_id=None,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    model.generation_config.eos_token_id = None
    attention.register()
    return prepare("7B", model, LetterTokenizer(), device)


def _engine(device: torch.device, tokens: int, **settings: Any) -> Any:
    """An engine over the 7B model with a pool for so many tokens."""
    from kvproxy.engine.engine import Engine
    from kvproxy.settings import EngineSettings

    loaded = seven_billion(device)
    # The engine before this one is a ring of references, with gigabytes behind it.
    gc.collect()
    torch.cuda.empty_cache()
    blocks = tokens // 16 + 64
    if blocks * loaded.shape.block_bytes(16, loaded.dtype) > torch.cuda.mem_get_info(device)[0] * 0.8:
        raise NotHere(f"a pool for {tokens} tokens does not fit this GPU")
    return Engine(loaded, EngineSettings(**({"num_blocks": blocks, "max_batch_tokens": 8192} | settings)))


def _submit(engine: Any, prompt: list[int], count: int) -> None:
    from kvproxy.generation import GenerationRequest, SamplingParams

    params = SamplingParams(max_tokens=count, temperature=0.0)
    engine.submit(GenerationRequest(str(next(_numbers)), tuple(prompt), params), lambda delta: None)


def _random_tokens(count: int) -> list[int]:
    tokens: list[int] = torch.randint(0, _VOCABULARY, (count,)).tolist()
    return tokens


def _first_token(engine: Any, prompt: list[int]) -> float:
    began = time.perf_counter()
    _submit(engine, prompt, 1)
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began


def prefill_rate(device: torch.device) -> Figures:
    """Operations a second of a prompt of 8,192 tokens, against a large product."""
    engine = _engine(device, 60_000)
    took = statistics.median([_first_token(engine, _random_tokens(8192)) for _ in range(6)][1:])
    model = seven_billion(device).model
    weights = sum(parameter.numel() for name, parameter in model.named_parameters() if "layers" in name)
    work = 2 * weights * 8192 + 4 * 32 * 4096 * 8192**2 / 2
    rate, floor = work / took, matmul_rate(device)
    return {
        "seconds": f"{took:.3f}",
        "rate": f"{rate / 1e12:.0f} TFLOP/s, {rate / floor:.2f} of the product's",
        "attention": engine._runner.backends.prefill.name,
    }


def decode_steps(device: torch.device) -> Figures:
    """Milliseconds of a decode step with and without graphs, and what reading weights and keys once would take."""
    figures: Figures = {}
    weights = sum(parameter.numel() * 2 for parameter in seven_billion(device).model.parameters())
    for rows in (1, 8, 64):
        took = {}
        for graphs in (True, False):
            engine = _engine(device, rows * 1200, max_sequences=rows, cuda_graphs=graphs, max_model_len=2048)
            if graphs and not engine._runner.replays:
                raise Missed("the model's steps were not captured", figures)
            for _ in range(rows):
                _submit(engine, _random_tokens(1024), 64)
            while any(each.num_generated < 2 for each in engine._scheduler.running) or engine._scheduler.waiting:
                engine.step()
            times = []
            for _ in range(30):
                began = time.perf_counter()
                engine.step()
                times.append(time.perf_counter() - began)
            took[graphs] = statistics.median(times)
            del engine
        floor = (weights + rows * 1050 * 2 * 32 * 8 * 128 * 2) / copy_bandwidth(device)
        figures[f"{rows} rows"] = (
            f"{took[True] * 1e3:.2f} ms, eager {took[False] * 1e3:.2f} ms ({took[True] / took[False]:.2f}),"
            f" memory's floor {floor * 1e3:.2f} ms ({took[True] / floor:.2f})"
        )
    return figures


def first_token(device: torch.device) -> Figures:
    """Time to first token behind 8,192 shared tokens: cold, warm, and of the suffix alone."""
    engine = _engine(device, 100_000)
    shared = _random_tokens(8192)
    _first_token(engine, shared + _random_tokens(128))
    _first_token(engine, _random_tokens(128))
    figures: Figures = {}
    missed = []
    for suffix in (64, 256):
        cold = statistics.median(_first_token(engine, _random_tokens(8192 + suffix)) for _ in range(2))
        _first_token(engine, shared + _random_tokens(suffix))
        warm, alone = [], []
        for _ in range(15):
            warm.append(_first_token(engine, shared + _random_tokens(suffix)))
            alone.append(_first_token(engine, _random_tokens(suffix)))
        ratio = statistics.median(one / other for one, other in zip(warm, alone, strict=True))
        figures[f"suffix {suffix}"] = (
            f"warm {statistics.median(warm) * 1e3:.1f} ms, alone {statistics.median(alone) * 1e3:.1f} ms"
            f" ({ratio:.2f}), cold {cold * 1e3:.0f} ms"
        )
        if ratio > GOAL:
            missed.append(f"suffix {suffix}: {ratio:.2f} times the suffix alone, goal {GOAL}")
    if missed:
        raise Missed("; ".join(missed), figures)
    return figures


CHECKS = (
    Check("limits of the device", 40, limits),
    Check("decode kernels against memory bandwidth", 120, decode_bandwidth),
    Check("first token, 8k shared, 7B", 100, first_token),
    Check("decode steps with and without graphs, 7B", 120, decode_steps),
    Check("prefill against the matmul rate, 7B", 60, prefill_rate),
)
