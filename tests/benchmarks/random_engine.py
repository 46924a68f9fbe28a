"""An embedded engine with random weights, and requests of random tokens."""

import itertools
import random
import time
from collections.abc import Iterable
from typing import Any

import torch

from kvproxy.apis.codecs.generation import GenerationRequest, Grammar, SamplingParams
from kvproxy.engine.attention.paged_attention import register_attention
from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import LoadedModel
from tests.engine.models import load

_NUMBERS = itertools.count()
_DRAW = random.Random(0)


def random_tokens(count: int, vocabulary: int = 16_000) -> list[int]:
    return [_DRAW.randrange(100, vocabulary) for _ in range(count)]


def random_model() -> Any:
    """Return a Llama of about 50 million float32 parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    register_attention()
    torch.manual_seed(0)
    sizes = {"vocab_size": 16_000, "hidden_size": 512, "intermediate_size": 1408, "max_position_embeddings": 4096}
    layers = {"num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4}
    ends = {"tie_word_embeddings": False, "eos_token_id": None, "bos_token_id": None}
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes, **layers, **ends))
    model.generation_config.eos_token_id = None
    return model.float().eval()


def load_random() -> LoadedModel:
    return load(random_model())


def submit(engine: EngineCore, prompts: Iterable[list[int]], grammar: Grammar | None = None, **sampling: Any) -> None:
    """Add requests; they ignore the end of a text, unless they have a grammar."""
    parameters = SamplingParams(**{"temperature": 0.0, "ignore_eos": grammar is None, **sampling})
    for prompt in prompts:
        request = GenerationRequest(str(next(_NUMBERS)), tuple(prompt), parameters, grammar=grammar)
        engine.add_request(request, lambda delta: None)


def generate(engine: EngineCore, prompts: Iterable[list[int]], max_tokens: int) -> None:
    """Run the engine until all requests are finished."""
    submit(engine, prompts, max_tokens=max_tokens)
    while engine.has_work:
        if engine.is_stalled and engine.tiers:
            time.sleep(0.002)
        engine.step()
