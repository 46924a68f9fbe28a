"""Random models of several architectures, and a tokenizer that gives each id a letter."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

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
    "llama": lambda: LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **_SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(num_key_value_heads=2, head_dim=16, **_SHAPE)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(num_key_value_heads=2, sliding_window=None, **_SHAPE)),
    "gpt-neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_SHAPE)),
    "phi": lambda: PhiForCausalLM(PhiConfig(num_key_value_heads=4, **_SHAPE)),
}
ARCHITECTURES = tuple(_MAKERS)


class LetterTokenizer:
    """Ids to letters; enough of a Hugging Face tokenizer for the engine."""

    eos_token_id = None
    chat_template = None
    is_fast = False

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("a") + id % 26) for id in ids)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]


def random_model(architecture: str, seed: int = 0) -> Any:
    """A model with random weights in float32."""
    torch.manual_seed(seed)
    model = _MAKERS[architecture]().float().eval()
    model.generation_config.eos_token_id = None
    return model


@torch.inference_mode()
def reference(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """What `model.generate` produces greedily, without any of our code."""
    ids = torch.tensor([list(prompt)], device=model.device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    generated: list[int] = out[0, len(prompt) :].tolist()
    return generated
