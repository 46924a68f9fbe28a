"""The embedded engine with a model in each number format and with weights in 8 bits, in turn: times of prompts and answers.

    python -m tests.benchmarks.dtypes MODEL [--rounds 5] [--threads 1]

MODEL is what `kvproxy serve --model` takes. Prompts are random tokens, and no two are alike, so nothing is reused.
"""

import argparse
import itertools
import random
import tempfile
from functools import partial
from pathlib import Path

import torch

from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import load_model
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.benchmarks.timing import interleave, report

_NUMBERS = itertools.count()


def answer(engine: EngineCore, chance: random.Random, rows: int, prompt: int, tokens: int) -> None:
    """Answer so many prompts at once."""
    for _ in range(rows):
        ids = tuple(chance.randrange(100, engine.limits.vocab_size) for _ in range(prompt))
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        engine.add_request(GenerationRequest(str(next(_NUMBERS)), ids, params), lambda delta: None)
    while engine.has_work:
        engine.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        chosen = load_model(given.model, "cpu", "auto", cache_dir=Path(folder)).dtype
    loaded = {kind: load_model(given.model, "cpu", kind) for kind in ("float32", "bfloat16")}
    loaded["int8 weights"] = load_model(given.model, "cpu", "bfloat16", weights="int8")
    engines = {name: EngineCore(each, EngineSettings(num_blocks=2000)) for name, each in loaded.items()}
    print(f"auto chooses {chosen} for {given.model}, {given.threads} threads")
    for title, rows, prompt, tokens in (
        ("a prompt of 512 tokens, 1 new one", 1, 512, 1),
        ("a prompt of 16 tokens, 32 new ones", 1, 16, 32),
        ("8 prompts of 16 tokens, 32 new ones each", 8, 16, 32),
    ):
        for engine in engines.values():
            answer(engine, random.Random(0), 1, 16, 2)
        works = {
            name: partial(answer, engine, random.Random(1), rows, prompt, tokens) for name, engine in engines.items()
        }
        report(title, interleave(works, given.rounds), "float32")


if __name__ == "__main__":
    main()
