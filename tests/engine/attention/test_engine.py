"""The whole engine with the GPU's decode kernels, under Triton's interpreter."""

import torch

from kvproxy.engine import attention
from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import prepare_model
from kvproxy.engine.worker.cuda_graphs import no_capture
from kvproxy.settings import EngineSettings
from tests.engine.answers import run
from tests.engine.models import LetterTokenizer, random_model, reference


def test_tokens_equal_generate() -> None:
    model = random_model("llama")
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(0, 300, (20,), generator=generator).tolist()
    prompts = [shared + torch.randint(0, 300, (size,), generator=generator).tolist() for size in (3, 30)]
    expected = [reference(model, prompt, 4) for prompt in prompts]
    attention.register()
    loaded = prepare_model("llama", model, LetterTokenizer(), torch.device("cpu"))
    settings = EngineSettings(num_blocks=60, block_size=4, max_num_seqs=2, decode_attention="triton")
    assert run(EngineCore(loaded, settings), prompts, answer=4) == expected
    replaying = EngineCore(loaded, settings, capture=no_capture)
    for _ in ("cold", "warm"):
        assert run(replaying, prompts, answer=4) == expected
    assert replaying.manager.stats().hits > 0
