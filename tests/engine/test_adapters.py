"""LoRA adapters: answers are those of the model with the adapter's matrices added to its weights, whoever is beside it."""

import copy
import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvproxy.engine import attention
from kvproxy.engine.core import EngineCore
from kvproxy.engine.kernels.packed_linear import pack_linears
from kvproxy.engine.models.loader import prepare_model
from kvproxy.engine.models.lora import LoraManager
from kvproxy.errors import InvalidRequest, ModelUnsupported
from kvproxy.generation import Delta, GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.engine.models import VOCABULARY, LetterTokenizer, random_model, reference
from tests.reference.integrity import check_integrity

LAYERS = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.mlp.gate_proj",
    "model.layers.1.self_attn.k_proj",
    "model.layers.1.mlp.down_proj",
)
CONFIG = {"peft_type": "LORA", "bias": "none", "lora_alpha": 24, "r": 4}


def make_adapter(folder: Path, model: Any, seed: int, config: dict[str, Any] = CONFIG) -> Any:
    """An adapter in a folder; and a copy of the model that has it in its weights."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    merged, tensors = copy.deepcopy(model), {}
    for layer in LAYERS:
        weight = merged.get_submodule(layer).weight
        down = torch.randn(4, weight.shape[1], generator=generator) * 0.3
        up = torch.randn(weight.shape[0], 4, generator=generator) * 0.3
        weight.data += 24 / 4 * up @ down
        tensors |= {f"base_model.model.{layer}.lora_A.weight": down, f"base_model.model.{layer}.lora_B.weight": up}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return merged


@pytest.mark.parametrize("fused", [False, True])
def test_each_request_gets_its_adapters_answer(fused: bool, tmp_path: Path) -> None:
    model = random_model("llama")
    models = {
        None: model,
        "one": make_adapter(tmp_path / "one", model, 1),
        "two": make_adapter(tmp_path / "two", model, 2),
    }
    chance = random.Random(3)
    shared = [chance.randrange(VOCABULARY) for _ in range(40)]
    prompts = [[*shared[: chance.randrange(20, 40)], chance.randrange(VOCABULARY)] for _ in range(4)]
    expected = {name: [reference(each, prompt, 6) for prompt in prompts] for name, each in models.items()}
    assert expected[None] != expected["one"] != expected["two"]
    attention.register()
    if fused:
        pack_linears(model)
    loaded = prepare_model("llama", model, LetterTokenizer(), torch.device("cpu"))
    adapters = LoraManager(model, {name: tmp_path / name for name in ("one", "two")})
    engine = EngineCore(
        replace(loaded, adapters=adapters),
        EngineSettings(num_blocks=400, block_size=4, max_num_batched_tokens=32, num_speculative_tokens=2),
    )
    asked = [(name, number) for number in range(len(prompts)) for name in models]
    cold, warm = ask(engine, prompts, asked, "cold"), ask(engine, prompts, asked, "warm")
    for name, number in asked:
        assert cold[name, number][0] == warm[name, number][0] == expected[name][number]
    # The first of each adapter finds nothing, though the others have computed the same prompt.
    assert [cold[name, 0][1] for name in models] == [0, 0, 0]
    assert min(tokens for _, tokens in warm.values()) > 0


Key = tuple[str | None, int]


def ask(engine: EngineCore, prompts: list[list[int]], asked: list[Key], round: str) -> dict[Key, tuple[list[int], int]]:
    """Tokens of each answer, and how many of its prompt's were cached."""
    found: dict[Key, tuple[list[int], int]] = {}

    def take(delta: Delta, key: Key) -> None:
        tokens, _ = found.get(key, ([], 0))
        found[key] = ([*tokens, *delta.tokens], delta.usage.cached_tokens)

    for name, number in asked:
        params = SamplingParams(max_tokens=6, temperature=0.0)
        request = GenerationRequest(f"{round} {name} {number}", tuple(prompts[number]), params, adapter=name)
        engine.add_request(request, partial(take, key=(name, number)))
    while engine.has_work:
        engine.step()
        check_integrity(engine.manager)
    return found


def test_an_adapter_that_cannot_be_served_is_refused(tmp_path: Path) -> None:
    model = random_model("llama")
    for number, (change, reason) in enumerate(
        (
            ({"use_dora": True}, "DoRA"),
            ({"bias": "all"}, "bias all"),
            ({"peft_type": "IA3"}, "type IA3"),
            ({"modules_to_save": ["lm_head"]}, "replaces whole layers"),
        )
    ):
        folder = tmp_path / str(number)
        make_adapter(folder, model, 0, CONFIG | change)
        with pytest.raises(ModelUnsupported, match=reason):
            LoraManager(model, {"x": folder})
    with pytest.raises(ModelUnsupported, match="cannot read adapter 'x'"):
        LoraManager(model, {"x": tmp_path / "nowhere"})
    make_adapter(tmp_path / "other", model, 0)
    with pytest.raises(ModelUnsupported, match="does not fit this model"):
        LoraManager(random_model("gpt-neox"), {"x": tmp_path / "other"})


def test_an_unknown_adapter_is_refused() -> None:
    attention.register()
    loaded = prepare_model("llama", random_model("llama"), LetterTokenizer(), torch.device("cpu"))
    engine = EngineCore(loaded, EngineSettings(num_blocks=40, block_size=4))
    with pytest.raises(InvalidRequest, match="adapter 'x'"):
        engine.add_request(GenerationRequest("r", (1, 2), SamplingParams(), adapter="x"), lambda piece: None)


def test_an_adapter_is_named_by_its_numbers_and_by_where_they_stand(tmp_path: Path) -> None:
    model = random_model("llama")
    for name in ("one", "same"):
        make_adapter(tmp_path / name, model, 1)
    (tmp_path / "moved").mkdir()
    tensors = load_file(tmp_path / "one" / "adapter_model.safetensors")
    moved = {
        name.replace("layers.0.self_attn", "layers.1.self_attn") if "q_proj" in name else name: tensor
        for name, tensor in tensors.items()
    }
    assert moved.keys() != tensors.keys()
    save_file(moved, tmp_path / "moved" / "adapter_model.safetensors")
    (tmp_path / "moved" / "adapter_config.json").write_text(json.dumps(CONFIG))
    digests = {
        name: LoraManager(model, {name: tmp_path / name}).by_name[name].digest for name in ("one", "same", "moved")
    }
    assert digests["one"] == digests["same"] != digests["moved"]
