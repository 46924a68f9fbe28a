"""Decode throughput against `model.generate`, the same prompts as one batch.

python -m tests.benchmarks.decode
"""

import itertools
import random

import torch

from kvproxy.engine import attention
from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import prepare_model
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.benchmarks.models import fifty_million
from tests.benchmarks.timing import interleave, report
from tests.engine.models import LetterTokenizer

PROMPT, ANSWER = 128, 64


def main() -> None:
    attention.register()
    model = fifty_million()
    chance = random.Random(0)
    numbers = itertools.count()
    for rows in (1, 8, 32):
        prompts = [[chance.randrange(16_000) for _ in range(PROMPT)] for _ in range(rows)]

        def ours(prompts: list[list[int]] = prompts, rows: int = rows) -> None:
            loaded = prepare_model("random", model, LetterTokenizer(), torch.device("cpu"))
            engine = EngineCore(loaded, EngineSettings(num_blocks=rows * 16 + 8, block_size=16, max_num_seqs=64))
            for prompt in prompts:
                sampling = SamplingParams(max_tokens=ANSWER, temperature=0.0)
                engine.add_request(GenerationRequest(str(next(numbers)), tuple(prompt), sampling), lambda delta: None)
            while engine.has_work:
                engine.step()

        @torch.inference_mode()
        def generate(prompts: list[list[int]] = prompts) -> None:
            model.set_attn_implementation("sdpa")
            ids = torch.tensor(prompts)
            model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=ANSWER, do_sample=False, pad_token_id=0
            )

        seconds = interleave({"kvproxy": ours, "model.generate": generate}, 5)
        report(f"{rows} prompts of {PROMPT} tokens, {ANSWER} new tokens each", seconds, "model.generate")


if __name__ == "__main__":
    main()
