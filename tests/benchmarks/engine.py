"""The embedded engine: time to first token, decode rate, number formats, and the step outside the model.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.engine ttft      # cold and warm prefix of 1,024 tokens, suffix of 64
    OMP_NUM_THREADS=1 python -m tests.benchmarks.engine decode    # beside transformers' `generate`
    OMP_NUM_THREADS=1 python -m tests.benchmarks.engine dtypes [--model MODEL]
    OMP_NUM_THREADS=1 python -m tests.benchmarks.engine step [--model MODEL]

`ttft` and `decode` use random weights of 50 million parameters. MODEL is as for `kvproxy serve --model`; prompts are random.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import load_model
from kvproxy.settings import EngineSettings
from tests.benchmarks.random_engine import generate, load_random, random_model, random_tokens
from tests.benchmarks.timing import interleave, report
from tests.engine.models import load

SHARED, SUFFIX = 1024, 64
ROWS = (1, 8, 32)


def ttft(model: str, rounds: int) -> None:
    """Compare a warm prefix with the suffix alone, and with transformers over a contiguous cache."""
    settings = EngineSettings(num_blocks=2000, block_size=16, max_num_batched_tokens=2048)
    engine, shared = EngineCore(load_random(), settings), random_tokens(SHARED)
    generate(engine, [shared + random_tokens(SUFFIX)], 1)
    works = {
        "cold": lambda: generate(engine, [random_tokens(SHARED + SUFFIX)], 1),
        "warm": lambda: generate(engine, [shared + random_tokens(SUFFIX)], 1),
        "suffix alone": lambda: generate(engine, [random_tokens(SUFFIX)], 1),
        "transformers": contiguous_cache(shared),
    }
    found = interleave(works, rounds)
    for base in ("suffix alone", "transformers"):
        report(f"time to first token, {SHARED} shared tokens and {SUFFIX} new ones", found, base)


def contiguous_cache(shared: list[int]) -> Callable[[], None]:
    """Return a forward pass over a new suffix, with the shared prefix in one cache of transformers."""
    from transformers import DynamicCache

    model: Any = random_model()
    cache = DynamicCache(config=model.config)

    @torch.inference_mode()
    def forward(tokens: list[int]) -> None:
        logits = model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        logits[0, -1].argmax().item()

    def work() -> None:
        forward(random_tokens(SUFFIX))
        cache.crop(-SUFFIX)

    forward(shared)
    return work


def decode(name: str, rounds: int) -> None:
    """Compare batches with `model.generate`."""
    model, prompt, answer = random_model(), 128, 64
    for rows in ROWS:
        prompts = [random_tokens(prompt) for _ in range(rows)]

        def engine(prompts: list[list[int]] = prompts, rows: int = rows) -> None:
            loaded = load(model)
            settings = EngineSettings(num_blocks=rows * 16 + 8, block_size=16, max_num_seqs=64)
            generate(EngineCore(loaded, settings), prompts, answer)

        @torch.inference_mode()
        def transformers(prompts: list[list[int]] = prompts) -> None:
            model.set_attn_implementation("sdpa")
            options = {"max_new_tokens": answer, "do_sample": False, "pad_token_id": 0}
            model.generate(torch.tensor(prompts), attention_mask=torch.ones(len(prompts), prompt).long(), **options)

        found = interleave({"kvproxy": engine, "model.generate": transformers}, rounds)
        report(f"{rows} prompts of {prompt} tokens, {answer} new tokens each", found, "model.generate")


def dtypes(name: str, rounds: int) -> None:
    """Compare float32, bfloat16, and 8-bit weights."""
    print(f"auto selects {load_model(name, 'cpu').dtype} for {name}")
    loaded = {dtype: load_model(name, "cpu", dtype) for dtype in ("float32", "bfloat16")}
    loaded["int8 weights"] = load_model(name, "cpu", "bfloat16", quantization="int8")
    engines = {kind: EngineCore(each, EngineSettings(num_blocks=2000)) for kind, each in loaded.items()}
    for rows, prompt, answer in ((1, 512, 1), (1, 16, 32), (8, 16, 32)):

        def work(engine: EngineCore, rows: int = rows, prompt: int = prompt, answer: int = answer) -> None:
            generate(engine, [random_tokens(prompt, engine.limits.vocab_size) for _ in range(rows)], answer)

        for engine in engines.values():
            work(engine, 1, 16, 2)
        found = interleave({kind: partial(work, engine) for kind, engine in engines.items()}, rounds)
        report(f"{rows} prompts of {prompt} tokens, {answer} new tokens each", found, "float32")


def step(name: str, rounds: int) -> None:
    """Print the CPU time of a decode step outside the model: planning, sampling, and detokenizing."""
    loaded, inside, answer = load_model(name, "cpu", "float32"), 0.0, 64
    forward = loaded.model.forward

    def timed(*arguments: Any, **options: Any) -> Any:
        nonlocal inside
        began = time.thread_time()
        output = forward(*arguments, **options)
        inside += time.thread_time() - began
        return output

    loaded.model.forward = timed
    engine = EngineCore(loaded, EngineSettings(num_blocks=2000))
    for rows in ROWS:
        found = []
        for _ in range(rounds + 1):
            inside, began = 0.0, time.thread_time()
            generate(engine, [random_tokens(16, engine.limits.vocab_size) for _ in range(rows)], answer)
            found.append((time.thread_time() - began - inside, inside))
        # The first round is a warm-up.
        outside, share = (
            statistics.median(values)
            for values in zip(*((out, out / (out + model)) for out, model in found[1:]), strict=True)
        )
        print(f"{rows:>2} rows: {outside / answer * 1e3:.2f} ms outside the model, {share:.1%} of the step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures = {"ttft": ttft, "decode": decode, "dtypes": dtypes, "step": step}
    parser.add_argument("measure", choices=measures)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads")
    measures[options.measure](options.model, options.rounds)


if __name__ == "__main__":
    main()
