"""Greedy output equals `model.generate` token for token: cold, with hits, in tiny pools, among cancellations."""

import pytest
import torch

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.engine.worker.cuda_graphs import no_capture
from tests.engine.driven import ANSWER, Driven, prompts_of
from tests.engine.models import ARCHITECTURES, HYBRIDS, random_model, reference, tiny


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokens_equal_generate(architecture: str) -> None:
    prompts, expected = prompts_of(architecture, 4)
    for blocks in (400, 26) if architecture == "llama" else (26,):
        driven = Driven(tiny(architecture), num_blocks=blocks, eviction_policy="sessions")
        for round in ("cold", "warm"):
            assert driven.answers(prompts, round) == expected
        stats = driven.engine.manager.stats()
        assert stats.used == 0
        assert stats.hits > 0
        if blocks == 26:
            assert stats.evictions > 15


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_tokens_of_models_with_limited_attention_equal_generate(architecture: str) -> None:
    loaded, (prompts, expected) = tiny(architecture), prompts_of(architecture, 4)
    assert len({tuple(answer) for answer in expected}) > 2, "answers that do not depend on the prompt prove nothing"
    specs = [group.group_spec(4) for group in loaded.groups]
    # The longest request just fits the last pool.
    least = 1 + KVCacheManager(1000, groups=specs).max_blocks_in_use(92 + ANSWER, 32)
    pools: list[tuple[int, str]] = [(least, "all")]
    if architecture == "gemma3":
        pools += [(least, "last"), (20 * least, "last")]
    for blocks, kept in pools:
        driven = Driven(loaded, num_blocks=blocks, num_speculative_tokens=2, cached_windows=kept)
        for round in ("cold", "warm"):
            for number, prompt in enumerate(prompts):
                driven.submit(f"{round}{number}", prompt)
                driven.submit(f"{round}{number} leaves", prompt)
            for number in range(len(prompts)):
                driven.engine.abort(f"{round}{number} leaves")
                driven.step()
            driven.run()
            assert [driven.tokens[f"{round}{number}#0"] for number in range(len(prompts))] == expected
        stats = driven.engine.manager.stats()
        assert stats.used == 0
        # The smallest pool rarely keeps a last window until it is needed again.
        assert stats.hits > 0 or (blocks, kept) == (least, "last")
        if blocks == least:
            assert stats.evictions > (20 if kept == "all" else 10)


def test_several_answers_share_the_prompt_and_each_is_exact() -> None:
    prompts, expected = prompts_of("llama")
    driven = Driven(max_num_batched_tokens=128)
    driven.submit("r", prompts[0], n=3)
    most = 0
    while driven.engine.has_work:
        driven.step()
        most = max(most, driven.engine.manager.stats().used)
    assert [driven.tokens[f"r#{index}"] for index in range(3)] == [expected[0]] * 3
    whole = -(-(len(prompts[0]) + ANSWER) // 4)
    own = -(-ANSWER // 4) + 1
    assert most <= whole + 2 * own


def test_tokens_of_the_decode_kernels_equal_generate() -> None:
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(0, 300, (20,), generator=generator).tolist()
    prompts = [shared + torch.randint(0, 300, (size,), generator=generator).tolist() for size in (3, 14)]
    expected = [reference(random_model("llama"), prompt, 3) for prompt in prompts]
    driven = Driven(capture=no_capture, max_num_seqs=2, decode_attention="triton")
    for round in ("cold", "warm"):
        assert driven.answers(prompts, round, 3) == expected
    assert driven.engine.manager.stats().hits > 0
    assert Driven(max_num_seqs=2, decode_attention="triton").answers(prompts[:1], "eager", 2) == [expected[0][:2]]
