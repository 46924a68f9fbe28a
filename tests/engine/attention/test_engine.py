"""The whole engine with the GPU's decode kernels, under Triton's interpreter."""

import torch

from kvproxy.engine.worker.cuda_graphs import no_capture
from tests.engine.driven import Driven
from tests.engine.models import random_model, reference


def test_tokens_equal_generate() -> None:
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(0, 300, (20,), generator=generator).tolist()
    prompts = [shared + torch.randint(0, 300, (size,), generator=generator).tolist() for size in (3, 14)]
    expected = [reference(random_model("llama"), prompt, 3) for prompt in prompts]
    driven = Driven(capture=no_capture, max_num_seqs=2, decode_attention="triton")
    for round in ("cold", "warm"):
        assert driven.answers(prompts, round, 3) == expected
    assert driven.engine.manager.stats().hits > 0
    assert Driven(max_num_seqs=2, decode_attention="triton").answers(prompts[:1], "eager", 2) == [expected[0][:2]]
