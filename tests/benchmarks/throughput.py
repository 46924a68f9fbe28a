"""64 requests at once: kvproxy's engine against transformers' own continuous batching, prefixes shared and not.

python -m tests.benchmarks.throughput [--requests 64] [--rounds 3] [--prompt 192] [--shared 128] [--answer 32]

The same model, prompts, blocks and greedy answers. Both keep their caches and get prompts that are new in each
round, in turn; answers are compared.
"""

import argparse
import itertools
import logging
import random
import statistics
import time
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from kvproxy.engine import attention
from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import prepare_model
from kvproxy.generation import Delta, GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.benchmarks.models import fifty_million
from tests.benchmarks.timing import report
from tests.engine.models import LetterTokenizer

_numbers = itertools.count()


def ours(engine: EngineCore, prompts: list[list[int]], answer: int) -> list[list[int]]:
    answers: list[list[int]] = [[] for _ in prompts]
    for tokens, prompt in zip(answers, prompts, strict=True):

        def take(delta: Delta, tokens: list[int] = tokens) -> None:
            tokens.extend(delta.tokens)

        params = SamplingParams(max_tokens=answer, temperature=0.0)
        engine.add_request(GenerationRequest(str(next(_numbers)), tuple(prompt), params), take)
    while engine.has_work:
        engine.step()
    return answers


def theirs(model: Any, blocks: int, prompts: list[list[int]], answer: int) -> list[list[int]]:
    config = GenerationConfig(max_new_tokens=answer, do_sample=False, eos_token_id=-1, pad_token_id=0)
    # Its own defaults size the cache for all of the memory, which takes longer than the work; ours are the engine's.
    sizes = ContinuousBatchingConfig(page_size=16, num_blocks=blocks, max_batch_tokens=2048)
    found = model.generate_batch(
        prompts,
        generation_config=config,
        continuous_batching_config=sizes,
        warmup=False,
        progress_bar=False,
        persistent_manager=True,
    )
    return [list(found[name].generated_tokens) for name in sorted(found, key=lambda name: int(name.rsplit("_", 1)[-1]))]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("requests", 64), ("rounds", 3), ("prompt", 192), ("shared", 128), ("answer", 32)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)
    attention.register()
    chance = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(16_000) for _ in range(count)]

    loaded = prepare_model("random", fifty_million(), LetterTokenizer(), torch.device("cpu"))
    # Without blocks to spare neither of the two would batch all of them.
    blocks = chosen.requests * (-(-(chosen.prompt + chosen.answer) // 16) + 1) + 1
    engine = EngineCore(loaded, EngineSettings(num_blocks=blocks, max_num_seqs=chosen.requests))
    peer = fifty_million()
    for kind, shared in (("nothing shared", 0), (f"{chosen.shared} tokens shared", chosen.shared)):
        seconds: dict[str, list[float]] = {"kvproxy": [], "generate_batch": []}
        equal = 0
        # The first round warms both up.
        for number in range(chosen.rounds + 1):
            beginning = tokens(shared)
            prompts = [beginning + tokens(chosen.prompt - shared) for _ in range(chosen.requests)]
            began = time.perf_counter()
            mine = ours(engine, prompts, chosen.answer)
            between = time.perf_counter()
            other = theirs(peer, blocks, prompts, chosen.answer)
            if number:
                seconds["kvproxy"].append(between - began)
                seconds["generate_batch"].append(time.perf_counter() - between)
                equal += sum(a == b for a, b in zip(mine, other, strict=True))
        print(f"{kind}: {equal} of {chosen.rounds * chosen.requests} answers equal")
        report(f"{chosen.requests} requests of {chosen.prompt} + {chosen.answer} tokens, {kind}", seconds, "kvproxy")
        for name, values in seconds.items():
            print(f"{name:34} {chosen.requests * chosen.answer / statistics.median(values):10.1f} new tokens/s")
    peer.destroy_cached_continuous_batching_manager()


if __name__ == "__main__":
    main()
