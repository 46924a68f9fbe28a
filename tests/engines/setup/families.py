"""Makes small models with random weights, one per family of caches, with the tokenizer of the demo model.

Mamba 2 is missing: the CPU kernels of vLLM 0.32 cannot return the states that its prefix cache stores.

usage: families.py FOLDER TOKENIZER
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZE: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "bos_token_id": 0,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    # Full attention.
    "qwen3": ("qwen3", SIZE),
    # Sliding windows only.
    "mistral": ("mistral", SIZE | {"sliding_window": 128}),
    # Sliding windows and full attention.
    "gemma3": (
        "gemma3_text",
        SIZE | {"sliding_window": 128, "query_pre_attn_scalar": 32, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    # Gated delta nets and full attention.
    "qwen3_next": (
        "qwen3_next",
        SIZE | {
            "layer_types": ["linear_attention", "full_attention"] * 2, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_key_value_heads": 4, "head_dim": 128,
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
        },
    ),
    # Short convolutions and full attention.
    "lfm2": (
        "lfm2",
        SIZE | {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3, "conv_dim": 128, "block_dim": 128},
    ),
}  # fmt: skip


def make(folder: Path, tokenizer: Path, name: str) -> None:
    kind, options = FAMILIES[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options), dtype=torch.bfloat16)
    model.save_pretrained(folder / name)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / file, folder / name)


def main() -> None:
    folder, tokenizer = Path(sys.argv[1]), Path(sys.argv[2])
    for name in FAMILIES:
        if not (folder / name / "model.safetensors").exists():
            make(folder, tokenizer, name)


if __name__ == "__main__":
    main()
