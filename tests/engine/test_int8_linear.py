"""Weights in 8 bits."""

from pathlib import Path

import pytest
import torch

from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.models.linear_layers import Int8Linear, quantize
from kvproxy.engine.models.loader import load_model
from kvproxy.errors import ModelUnsupported
from kvproxy.settings import EngineSettings
from tests.engine.driven import Driven
from tests.engine.models import random_model


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 160, 161])
def test_a_layer_computes_with_its_rounded_weights(rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    linear = torch.nn.Linear(96, 64, bias=bias).bfloat16()
    layer = Int8Linear(linear)
    assert (layer.dequantized().float() - linear.weight.float()).abs().max() < linear.weight.abs().max() / 60
    given = torch.randn(1, rows, 96).bfloat16()
    expected = torch.nn.functional.linear(given.float(), layer.dequantized().float())
    expected += linear.bias.float() if bias else 0.0
    assert torch.allclose(layer(given).float(), expected, rtol=0.02, atol=0.02)


def test_the_demo_still_answers() -> None:
    loaded = load_model("demo", "cpu", quantization="int8")
    assert loaded.dtype == torch.bfloat16
    assert not any(isinstance(module, torch.nn.Linear) for module in loaded.model.modules())
    driven = Driven(loaded, block_size=16)
    driven.submit("1", loaded.tokenizer.chat([{"role": "user", "content": "What is a block?"}]), 60)
    driven.run()
    text = "".join(piece.text for piece in driven.pieces["1"])
    assert text.startswith("A block is a fixed number of tokens")


def test_it_is_refused_where_it_would_be_slower() -> None:
    with pytest.raises(ModelUnsupported, match=r"set engine\.dtype to bfloat16"):
        quantize(random_model("llama"))
    with pytest.raises(ModelUnsupported, match="int8 weights"):
        load_model("demo", "cpu", "float32", quantization="int8")
    with pytest.raises(ModelUnsupported, match="LoRA adapters need plain weights"):
        AsyncLLM.load(EngineSettings(quantization="int8", lora={"one": Path("nowhere")}), "demo")
