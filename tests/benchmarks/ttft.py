"""Time to first token: a 1,024-token shared prefix with a 64-token suffix, cold and warm, against the suffix alone.

python -m tests.benchmarks.ttft [--rounds 15]

The floor of the warm case is the same model in transformers with the prefix in one contiguous cache of its own.
"""

import argparse
import itertools
import random
from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache

from kvproxy.engine import attention
from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import prepare_model
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.benchmarks.models import fifty_million
from tests.benchmarks.timing import interleave, report
from tests.engine.models import LetterTokenizer

SHARED, SUFFIX = 1024, 64


def contiguous(shared: list[int], suffix: Callable[[], list[int]]) -> Callable[[], None]:
    """A forward pass over a suffix behind a prefix that transformers keeps."""
    model: Any = fifty_million()
    cache = DynamicCache(config=model.config)

    @torch.inference_mode()
    def forward(tokens: list[int]) -> None:
        logits = model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        logits[0, -1].argmax().item()

    def work() -> None:
        forward(suffix())
        cache.crop(-SUFFIX)

    forward(shared)
    return work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    attention.register()
    model = fifty_million()
    print(
        f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}M parameters, {torch.get_num_threads()} threads"
    )
    loaded = prepare_model("random", model, LetterTokenizer(), torch.device("cpu"))
    engine = EngineCore(loaded, EngineSettings(num_blocks=2000, block_size=16, max_num_batched_tokens=2048))
    chance = random.Random(0)
    numbers = itertools.count()

    def tokens(count: int) -> list[int]:
        return [chance.randrange(16_000) for _ in range(count)]

    def first_token(prompt: list[int]) -> None:
        request = GenerationRequest(str(next(numbers)), tuple(prompt), SamplingParams(max_tokens=1, temperature=0.0))
        engine.add_request(request, lambda delta: None)
        while engine.has_work:
            engine.step()

    shared = tokens(SHARED)
    first_token(shared + tokens(SUFFIX))
    works = {
        "cold": lambda: first_token(tokens(SHARED + SUFFIX)),
        "warm": lambda: first_token(shared + tokens(SUFFIX)),
        "suffix alone": lambda: first_token(tokens(SUFFIX)),
        "transformers, contiguous": contiguous(shared, lambda: tokens(SUFFIX)),
    }
    seconds = interleave(works, rounds)
    for base in ("suffix alone", "transformers, contiguous"):
        report(f"TTFT, {SHARED} shared tokens + {SUFFIX}", seconds, base)


if __name__ == "__main__":
    main()
