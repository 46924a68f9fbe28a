"""A model of a 7B shape with random weights, engines over it, and steps of it without a scheduler."""

import gc
import itertools
import time
from functools import cache
from typing import Any

import torch

from tests.gpu.check import NotHere
from tests.gpu.scale import scale_of

_numbers = itertools.count()


@cache
def model(device: torch.device) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.engine.models import load

    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < 22 << 30:
        raise NotHere("a 7B model takes 22 GiB of free GPU memory")
    scale = scale_of(device)
    shape = scale.shape
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=scale.longest,
        eos_token_id=None,
        bos_token_id=None,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            made = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    made.generation_config.eos_token_id = None
    return load(made, device)


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def check_memory(device: torch.device, tokens: int) -> None:
    loaded = model(device)
    if (
        device.type == "cuda"
        and tokens * loaded.shape.block_bytes(1, loaded.dtype) > 0.8 * torch.cuda.mem_get_info(device)[0]
    ):
        raise NotHere(f"a pool for {tokens} tokens does not fit this GPU")


def engine(device: torch.device, tokens: int, tiers: dict[str, Any] | None = None, **settings: Any) -> Any:
    from kvproxy.engine.core import EngineCore
    from kvproxy.settings import EngineSettings, TierSettings

    free()
    check_memory(device, tokens)
    sizes = {"num_blocks": tokens // 16 + 64, "max_num_batched_tokens": scale_of(device).context}
    return EngineCore(model(device), EngineSettings(**(sizes | settings)), TierSettings(**(tiers or {})))


def submit(engine: Any, prompt: list[int], count: int) -> list[int]:
    from kvproxy.apis.codecs.generation import GenerationRequest, SamplingParams

    tokens: list[int] = []
    params = SamplingParams(max_tokens=count, temperature=0.0)
    engine.add_request(
        GenerationRequest(str(next(_numbers)), tuple(prompt), params), lambda delta: tokens.extend(delta.tokens)
    )
    return tokens


def answer(engine: Any, prompt: list[int], count: int = 1) -> tuple[list[int], float]:
    began = time.perf_counter()
    tokens = submit(engine, prompt, count)
    while engine.has_work:
        if engine.is_stalled:
            time.sleep(0.002)
        engine.step()
    return tokens, time.perf_counter() - began


def random_tokens(device: torch.device, count: int) -> list[int]:
    tokens: list[int] = torch.randint(0, scale_of(device).shape.vocabulary, (count,)).tolist()
    return tokens


def runner(device: torch.device, rows: int, context: int, *, graphs: bool) -> tuple[Any, list[Any]]:
    from kvproxy.engine.attention.selector import select_backends
    from kvproxy.engine.scheduler.scheduler_output import TokenSpan
    from kvproxy.engine.worker.cuda_graphs import CudaCapture, no_capture
    from kvproxy.engine.worker.kv_pool import KVPool
    from kvproxy.engine.worker.model_runner import ModelRunner

    free()
    check_memory(device, rows * context)
    loaded = model(device)
    width = -(-context // 16)
    pool = KVPool(loaded.shape, rows * width + 1, 16, loaded.dtype, device)
    pool.data.normal_()
    made = ModelRunner(loaded, pool, select_backends(device, loaded.dtype, loaded.shape.head_dim))
    if graphs:
        capture = CudaCapture(device) if device.type == "cuda" else no_capture
        made.capture(capture, max_rows=rows, max_len=scale_of(device).longest)
    tables = (torch.randperm(rows * width) + 1).view(rows, width).tolist()
    return made, [TokenSpan([7], context - 1, [table]) for table in tables]
