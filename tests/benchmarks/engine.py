"""The embedded engine: time to first token, and decode rate.

OMP_NUM_THREADS=1 python -m tests.benchmarks.engine [--only ttft]

`ttft` measures cold and warm prefixes of 1,024 tokens with a suffix of 64, and `decode` batches beside transformers' `generate`.
The model has 50 million random parameters, and prompts are random.
"""

from collections.abc import Callable
from typing import Any

import torch

from kvproxy.engine.core import EngineCore
from kvproxy.settings import EngineSettings
from tests.benchmarks.options import read_options
from tests.benchmarks.random_engine import generate, load_random, random_model, random_tokens
from tests.benchmarks.timing import interleave, report
from tests.engine.models import load

SHARED, SUFFIX = 1024, 64
ROWS = (1, 8, 32)


def ttft(rounds: int) -> None:
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


def decode(rounds: int) -> None:
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


def main() -> None:
    options = read_options(__doc__, rounds=5, only="ttft decode")
    print(f"{torch.get_num_threads()} threads")
    for name in options.only.split():
        {"ttft": ttft, "decode": decode}[name](options.rounds)


if __name__ == "__main__":
    main()
