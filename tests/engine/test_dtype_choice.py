"""Which number format the embedded engine takes on a CPU."""

import stat
from collections import Counter
from pathlib import Path

import pytest
import torch

from kvproxy.backends.build import build_backend
from kvproxy.engine.kernels.dtype_choice import LayerCounts, fastest_dtype, linear_layers, measure_layers
from kvproxy.engine.models.loader import load_model
from kvproxy.settings import load_settings
from tests.engine.models import random_model


class Stopwatch:
    """Says how long layers take, and counts how often it was asked."""

    def __init__(self, float32: float, bfloat16: float) -> None:
        self._seconds = {torch.float32: float32, torch.bfloat16: bfloat16}
        self.asked = 0

    def __call__(self, layers: LayerCounts, kind: torch.dtype) -> float:
        self.asked += 1
        return self._seconds[kind]


def test_the_faster_one_is_taken_and_remembered(tmp_path: Path) -> None:
    model, folder = random_model("llama"), tmp_path / "data"
    quick = Stopwatch(float32=2.0, bfloat16=1.0)
    assert [fastest_dtype(model, folder, quick) for _ in range(3)] == [torch.bfloat16] * 3
    assert quick.asked == 2
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # Another model is another question, and what is known stays known.
    slow = Stopwatch(float32=1.0, bfloat16=2.0)
    assert fastest_dtype(random_model("gpt-neox"), folder, slow) == torch.float32
    assert fastest_dtype(model, folder, slow) == torch.bfloat16
    assert slow.asked == 2


@pytest.mark.parametrize("spoilt", ["", "[1]", "{", '{"x": 1}'])
def test_a_file_that_is_spoilt_or_cannot_be_written_is_measured_again(tmp_path: Path, spoilt: str) -> None:
    model, quick = random_model("llama"), Stopwatch(2.0, 1.0)
    (tmp_path / "dtypes.json").write_text(spoilt)
    assert fastest_dtype(model, tmp_path, quick) == torch.bfloat16
    (tmp_path / "file").write_text("")
    assert fastest_dtype(model, tmp_path / "file", quick) == torch.bfloat16
    assert quick.asked == 4


def test_what_is_measured_is_every_linear_layer() -> None:
    layers = linear_layers(random_model("llama"))
    # Two layers of 64 numbers with 4 heads, 2 of keys and values: q and o, k and v, gate and up, down; and the vocabulary.
    assert layers == Counter(
        {(64, 64, False): 4, (64, 32, False): 4, (64, 96, False): 4, (96, 64, False): 2, (64, 300, True): 1}
    )
    assert measure_layers(layers, torch.float32) > 0


def test_a_proxy_measures_and_a_named_format_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Stopwatch(2.0, 1.0)
    monkeypatch.setattr("kvproxy.engine.kernels.dtype_choice.measure_layers", measured)

    def served(dtype: str) -> torch.dtype:
        settings = load_settings(data=tmp_path, engine={"num_blocks": 64, "dtype": dtype})
        built = build_backend(settings)
        assert built.worker is not None
        return built.worker.dtype

    assert served("float32") == torch.float32
    assert measured.asked == 0
    assert served("auto") == served("auto") == torch.bfloat16
    assert measured.asked == 2
    # A program that names no folder gets the same on every machine.
    assert load_model("demo", "cpu").dtype == torch.float32
