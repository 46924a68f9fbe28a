"""Linear layers with packed weights."""

import pytest
import torch

from kvproxy.engine.models.linear_layers import PackedLinear, PackedModule, can_pack, pack_linears
from kvproxy.engine.models.loader import load_model
from tests.engine.models import random_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 130])
def test_a_layer_computes_the_same(rows: int, bias: bool, dtype: torch.dtype) -> None:
    if not can_pack(CPU, dtype):
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
    assert not can_pack(torch.device("meta"), torch.float32)
    assert not can_pack(CPU, torch.float16)


def test_packed_models_are_told_apart_by_their_weights() -> None:
    def digest(scale: float) -> torch.Tensor:
        model = random_model("llama")
        with torch.no_grad():
            next(each for each in model.modules() if isinstance(each, torch.nn.Linear)).weight.mul_(scale)
        pack_linears(model)
        return torch.cat([each.digest for each in model.modules() if isinstance(each, PackedModule)])

    assert torch.equal(digest(1.0), digest(1.0))
    assert not torch.equal(digest(1.0), digest(1.001))
