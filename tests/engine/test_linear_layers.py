"""Linear layers with packed weights, and with weights in 8 bits."""

from pathlib import Path

import pytest
import torch

from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.models.linear_layers import (
    Int8Linear,
    PackedLinear,
    pack_linear_layers,
    quantize_linear_layers,
    supports_packed_linear,
)
from kvproxy.engine.models.loader import load_model
from kvproxy.errors import ModelUnsupported
from kvproxy.settings import EngineSettings
from tests.engine.driven import Driven
from tests.engine.models import CPU, random_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 130])
def test_a_layer_computes_the_same(rows: int, bias: bool, dtype: torch.dtype) -> None:
    if not supports_packed_linear(CPU, dtype):
        pytest.skip("this processor does not multiply bfloat16")
    torch.manual_seed(rows)
    linear = torch.nn.Linear(96, 64, bias=bias, dtype=dtype)
    given = torch.randn(2, rows, 96, dtype=dtype)
    exact = torch.nn.Linear(96, 64, bias=bias, dtype=torch.float64)
    exact.load_state_dict(linear.state_dict())
    error = 1e-5 if dtype == torch.float32 else 2e-2
    with torch.inference_mode():
        expected = exact(given.double())
        output = PackedLinear(linear)(given)
        # A part of a larger tensor, as attention hands it on.
        part = PackedLinear(linear)(given.transpose(0, 1).contiguous().transpose(0, 1)[:, ::2])
    assert output.dtype == dtype
    assert torch.allclose(output.double(), expected, rtol=error, atol=error)
    assert torch.allclose(part.double(), expected[:, ::2], rtol=error, atol=error)


def test_a_loaded_model_is_packed_and_its_embeddings_stay() -> None:
    model = load_model("demo", "cpu").model
    assert isinstance(model.get_output_embeddings(), PackedLinear)
    assert not any(type(module) is torch.nn.Linear for module in model.modules())
    assert isinstance(model.get_input_embeddings(), torch.nn.Embedding)


def test_only_a_processor_packs() -> None:
    assert not supports_packed_linear(torch.device("meta"), torch.float32)
    assert not supports_packed_linear(CPU, torch.float16)


def test_packed_models_are_told_apart_by_their_weights() -> None:
    def digest(scale: float) -> torch.Tensor:
        model = random_model("llama")
        with torch.no_grad():
            next(each for each in model.modules() if isinstance(each, torch.nn.Linear)).weight.mul_(scale)
        pack_linear_layers(model)
        return torch.cat([each.digest for each in model.modules() if isinstance(each, PackedLinear)])

    assert torch.equal(digest(1.0), digest(1.0))
    assert not torch.equal(digest(1.0), digest(1.001))


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
        quantize_linear_layers(random_model("llama"))
    with pytest.raises(ModelUnsupported, match="int8 weights"):
        load_model("demo", "cpu", "float32", quantization="int8")
    with pytest.raises(ModelUnsupported, match="LoRA adapters need plain weights"):
        AsyncLLM.load(EngineSettings(quantization="int8", lora={"one": Path("nowhere")}), "demo")
