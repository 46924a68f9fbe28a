"""The random model that the engine's benchmarks run."""

from typing import Any

import torch


def fifty_million() -> Any:
    """A Llama of about 50 million parameters with random weights, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=16_000,
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=12,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            eos_token_id=None,
            bos_token_id=None,
        )
    )
    model.generation_config.eos_token_id = None
    return model.float().eval()
