"""Continuous batching by transformers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.gpu import seven
from tests.gpu.scale import scale_of

_FLASH = "paged|flash_torch"
_BLOCK = 256  # tokens, the default
_LIMIT_SECONDS = 40.0


def fastest_attention(device: torch.device) -> str:
    """Return torch's FlashAttention if transformers accepts it, otherwise `sdpa`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_FLASH, _flash_attention)
    # transformers 5.23 removes the prefix `paged|`.
    is_accepted = ALL_ATTENTION_FUNCTIONS.get_interface(_FLASH, None) is _flash_attention
    return _FLASH if device.type == "cuda" and is_accepted else "sdpa"


def generate(model: Any, attention: str, prompts: list[list[int]], tokens: int, rows: int) -> float:
    """Return the seconds for all responses, of which at most `rows` are in a batch."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    config = ContinuousBatchingConfig(
        num_blocks=2 * rows * (-(-(max(map(len, prompts)) + tokens) // _BLOCK)),
        max_batch_tokens=scale_of(model.device).context,
        max_requests_per_batch=rows,
        allow_block_sharing=False,  # all prompts differ
    )
    batching = model.continuous_batching_context_manager
    with (
        _original_model(model, attention),
        batching(generation_config=generation, continuous_batching_config=config, timeout=5) as manager,
    ):
        # With FlashAttention, a full round captures all CUDA graphs.
        _run(manager, prompts, tokens if attention == _FLASH else 2)
        return _run(manager, prompts, tokens)


def _run(manager: Any, prompts: list[list[int]], tokens: int) -> float:
    began = time.perf_counter()
    unfinished = set(manager.add_requests(prompts, max_new_tokens=tokens))
    while unfinished:
        result = manager.get_result(timeout=1)
        if result is None and (time.perf_counter() - began > _LIMIT_SECONDS or not manager.is_running()):
            raise RuntimeError(f"{len(unfinished)} requests are unfinished")
        if result is not None and result.is_finished():
            if result.error or len(result.generated_tokens) != tokens:
                raise RuntimeError(result.error or f"{len(result.generated_tokens)} tokens")
            unfinished.remove(result.request_id)
    return time.perf_counter() - began


@contextmanager
def _original_model(model: Any, attention: str) -> Iterator[None]:
    """Undo the changes that the engine made to the model."""
    before = model.config._attn_implementation
    forwards = {module: vars(module).pop("forward") for module in model.modules() if "forward" in vars(module)}
    # `set_attn_implementation` would search for the package flash-attn.
    model.config._attn_implementation = attention
    try:
        yield
    finally:
        model.config._attn_implementation = before
        for module, forward in forwards.items():
            module.forward = forward
        seven.free()


def _flash_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: None, *, cache: Any, **batch: Any
) -> tuple[torch.Tensor, None]:
    """Attend like transformers' `paged_attention_forward`, but by torch's own FlashAttention."""
    from kvproxy.engine.attention.interface import ScoreOptions
    from kvproxy.engine.attention.varlen_prefill import PackedLayout, flash_attention

    keys, values = cache.update(key, value, module.layer_idx, batch["read_index"], batch["write_index"])
    ends = batch["cu_seq_lens_q"].int(), batch["cu_seq_lens_k"].int()
    layout = PackedLayout(*ends, batch["max_seqlen_q"], batch["max_seqlen_k"])
    queries, keys, values = query[0].transpose(0, 1).contiguous(), keys.contiguous(), values.contiguous()
    return flash_attention(queries, keys, values, layout, ScoreOptions(scaling=module.scaling)), None
