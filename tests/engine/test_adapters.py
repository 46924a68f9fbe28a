"""LoRA adapters: answers are those of the model with the adapter's matrices added to its weights, whoever is beside it."""

import copy
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvproxy.engine.models.linear_layers import pack_linear_layers
from kvproxy.engine.models.lora import LoraManager
from kvproxy.errors import InvalidRequest, ModelUnsupported
from tests.engine.driven import Driven
from tests.engine.models import VOCABULARY, load, random_model, reference

NAMES = ("one", "two")
LAYERS = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.mlp.gate_proj",
    "model.layers.1.self_attn.k_proj",
    "model.layers.1.mlp.down_proj",
)
CONFIG = {"peft_type": "LORA", "bias": "none", "lora_alpha": 24, "r": 4}


def make_adapter(
    folder: Path, model: Any, seed: int, config: dict[str, Any] = CONFIG, layers: Sequence[str] = LAYERS
) -> Any:
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    merged, tensors = copy.deepcopy(model), {}
    for layer in layers:
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
    models = {None: model} | {name: make_adapter(tmp_path / name, model, seed) for seed, name in enumerate(NAMES, 1)}
    chance = random.Random(3)
    shared = [chance.randrange(VOCABULARY) for _ in range(40)]
    prompts = [[*shared[: chance.randrange(20, 40)], chance.randrange(VOCABULARY)] for _ in range(4)]
    expected = {name: [reference(each, prompt, 6) for prompt in prompts] for name, each in models.items()}
    assert expected[None] != expected["one"] != expected["two"]
    if fused:
        pack_linear_layers(model)
    adapters = LoraManager(model, {name: tmp_path / name for name in NAMES})
    driven = Driven(replace(load(model), adapters=adapters), num_blocks=400, num_speculative_tokens=2)
    cached = {}
    for round in ("cold", "warm"):
        for number, prompt in enumerate(prompts):
            for name in models:
                driven.submit(f"{round} {name} {number}", prompt, 6, adapter=name)
        driven.run()
        cached[round] = [driven.usage[f"{round} {name} 0"].cached_tokens for name in models]
        for name in models:
            assert [driven.tokens[f"{round} {name} {number}#0"] for number in range(4)] == expected[name]
    # The first request of each adapter finds nothing, although the other adapters have computed the same prompt.
    assert cached["cold"] == [0, 0, 0]
    assert min(cached["warm"]) > 0


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
    with pytest.raises(InvalidRequest, match="adapter 'x'"):
        Driven().submit("r", (1, 2), adapter="x")


def test_an_adapter_is_named_by_its_numbers_and_by_where_they_stand(tmp_path: Path) -> None:
    model, digests = random_model("llama"), []
    moved = ("model.layers.1.self_attn.q_proj", *LAYERS[1:])
    for number, layers in enumerate((LAYERS, LAYERS, moved)):
        make_adapter(tmp_path / str(number), model, 1, layers=layers)
        digests.append(LoraManager(model, {"x": tmp_path / str(number)}).by_name["x"].digest)
    assert digests[0] == digests[1] != digests[2]
