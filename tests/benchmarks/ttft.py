"""Time to first token: a 1,024-token shared prefix with a 64-token suffix, cold and warm, against the suffix alone.

python -m tests.benchmarks.ttft
"""

import itertools
import random

import torch

from kvproxy.engine import attention
from kvproxy.engine.engine import Engine
from kvproxy.engine.models import prepare
from kvproxy.engine.request import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.benchmarks.models import fifty_million
from tests.benchmarks.timing import interleave, report
from tests.engine.models import LetterTokenizer

SHARED, SUFFIX = 1024, 64


def main() -> None:
    attention.register()
    model = fifty_million()
    print(
        f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}M parameters, {torch.get_num_threads()} threads"
    )
    loaded = prepare("random", model, LetterTokenizer(), torch.device("cpu"))
    engine = Engine(loaded, EngineSettings(num_blocks=2000, block_size=16, max_batch_tokens=2048))
    chance = random.Random(0)
    numbers = itertools.count()

    def tokens(count: int) -> list[int]:
        return [chance.randrange(16_000) for _ in range(count)]

    def first_token(prompt: list[int]) -> None:
        request = GenerationRequest(str(next(numbers)), tuple(prompt), SamplingParams(max_tokens=1, temperature=0.0))
        engine.submit(request, lambda delta: None)
        while engine.has_work:
            engine.step()

    shared = tokens(SHARED)
    first_token(shared + tokens(SUFFIX))
    works = {
        "cold": lambda: first_token(tokens(SHARED + SUFFIX)),
        "warm": lambda: first_token(shared + tokens(SUFFIX)),
        "suffix alone": lambda: first_token(tokens(SUFFIX)),
    }
    report(f"TTFT, {SHARED} shared tokens + {SUFFIX}", interleave(works, 15), "suffix alone")


if __name__ == "__main__":
    main()
