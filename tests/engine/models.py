"""Random models of several architectures, and a tokenizer that gives each id a letter."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import transformers

from kvproxy.engine.attention.paged_attention import register_attention
from kvproxy.engine.models.linear_layers import pack_linear_layers
from kvproxy.engine.models.loader import LoadedModel, prepare_model

CPU = torch.device("cpu")
VOCABULARY = 300
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "eos_token_id": None,
    "bos_token_id": None,
}
_MAKERS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **_SHAPE)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(num_key_value_heads=2, head_dim=16, **_SHAPE)
    ),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(num_key_value_heads=2, sliding_window=None, **_SHAPE)
    ),
    "gpt-neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**_SHAPE)),
    "phi": lambda: transformers.PhiForCausalLM(transformers.PhiConfig(num_key_value_heads=4, **_SHAPE)),
}
ARCHITECTURES = tuple(_MAKERS)
_SLIDING, _FULL, _CHUNKED = "sliding_attention", "full_attention", "chunked_attention"
_HYBRID = _SHAPE | {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
# Wide enough that answers depend on the attended tokens.
_HYBRID["initializer_range"] = 0.2
_HYBRID_MAKERS: dict[str, Any] = {
    # Seven layers, of which two are full: the last group has a slot to spare.
    "gemma3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(
            sliding_window=11,
            **_HYBRID | {"num_hidden_layers": 7},
            layer_types=[_SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL, _SLIDING],
            query_pre_attn_scalar=16,
        )
    ),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(sliding_window=13, attn_logit_softcapping=2.0, query_pre_attn_scalar=16, **_HYBRID)
    ),
    "gpt-oss": lambda: transformers.GptOssForCausalLM(
        transformers.GptOssConfig(sliding_window=9, num_local_experts=4, num_experts_per_tok=2, **_HYBRID)
    ),
    "mistral-window": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(sliding_window=6, **_HYBRID)),
    "qwen2-window": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            sliding_window=8, use_sliding_window=True, max_window_layers=1, **_without_head_dim(_HYBRID)
        )
    ),
    "llama4": lambda: transformers.Llama4ForCausalLM(
        transformers.Llama4TextConfig(
            attention_chunk_size=12,
            num_local_experts=2,
            num_experts_per_tok=1,
            intermediate_size_mlp=96,
            floor_scale=20,
            **_HYBRID | {"num_hidden_layers": 4},
            no_rope_layers=[1, 1, 1, 0],
        )
    ),
}
HYBRIDS = tuple(_HYBRID_MAKERS)
"""Models with windows, chunks, sinks or capped scores."""


def _without_head_dim(shape: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shape.items() if name != "head_dim"}


class LetterTokenizer:
    eos_token_id = None
    chat_template = None
    is_fast = False

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("a") + id % 26) for id in ids)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]


def random_model(architecture: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = (_MAKERS | _HYBRID_MAKERS)[architecture]().float().eval()
    model.generation_config.eos_token_id = None
    if architecture in HYBRIDS:
        model.set_attn_implementation("eager")
    # As they are made, sinks are empty memory or zeros.
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model


def load(model: Any, device: torch.device = CPU) -> LoadedModel:
    register_attention()
    return prepare_model("tiny", model, LetterTokenizer(), device)


@cache
def tiny(architecture: str = "llama", seed: int = 0) -> LoadedModel:
    model = random_model(architecture, seed)
    pack_linear_layers(model)
    return load(model)


@torch.inference_mode()
def reference(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = torch.tensor([list(prompt)], device=model.device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    generated: list[int] = out[0, len(prompt) :].tolist()
    return generated
