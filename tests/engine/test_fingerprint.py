"""What a saved chunk's name says of the model: it differs whenever keys and values may, and else it does not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.engine.tier_connector import model_fingerprint
from kvproxy.settings import EngineSettings
from tests.engine.models import load, random_model

HASHER = BlockHasher(seed="0")


@pytest.fixture
def loaded() -> LoadedModel:
    return load(random_model("llama"))


def digest(loaded: LoadedModel, **settings: Any) -> bytes:
    return model_fingerprint(loaded, EngineSettings(num_blocks=64, block_size=4, **settings), HASHER)


def test_the_order_in_which_a_configuration_is_written_changes_nothing(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest(loaded)
    assert len(before) == 32
    config = loaded.model.config.to_dict()
    monkeypatch.setattr(loaded.model.config, "to_dict", lambda: dict(reversed(config.items())))
    assert digest(loaded) == before


def _a_weight(loaded: LoadedModel) -> None:
    with torch.no_grad():
        next(loaded.model.parameters()).view(-1)[-1] += 1e-3


def _the_scale(loaded: LoadedModel) -> None:
    loaded.model.config.rms_norm_eps *= 2


@pytest.mark.parametrize("change", [_a_weight, _the_scale])
def test_what_changes_keys_and_values_changes_it(loaded: LoadedModel, change: Callable[[LoadedModel], None]) -> None:
    before = digest(loaded)
    change(loaded)
    assert digest(loaded) != before


def test_the_size_of_blocks_counts_and_the_length_of_pieces_in_strict_mode_only(loaded: LoadedModel) -> None:
    assert digest(loaded) == digest(loaded, max_num_batched_tokens=512)
    assert digest(loaded, batch_invariant=True) != digest(loaded, batch_invariant=True, max_num_batched_tokens=512)
    assert digest(loaded, threads=1) == digest(loaded, threads=2)
    assert digest(loaded, batch_invariant=True, threads=1) != digest(loaded, batch_invariant=True, threads=2)
    sizes = {model_fingerprint(loaded, EngineSettings(num_blocks=64, block_size=size), HASHER) for size in (4, 8)}
    assert len(sizes) == 2
