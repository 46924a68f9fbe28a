"""How far the layers of a model attend, and which layers share block tables."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvproxy.engine.models.layer_groups import group_layers, layer_attention_types, layer_slots


def config(**fields: Any) -> Any:
    return SimpleNamespace(**{"num_hidden_layers": 3} | fields)


LIMITED, WHOLE = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, [("full", 0)] * 3),
        ({"sliding_window": 8}, [("sliding_window", 8)] * 3),
        ({"sliding_window": 8, "use_sliding_window": False}, [("full", 0)] * 3),
        ({"sliding_window": 8, "layer_types": [LIMITED, WHOLE]}, [("sliding_window", 8), ("full", 0)]),
        # A limited layer without a limit sees everything.
        ({"layer_types": [LIMITED, "chunked_attention"]}, [("full", 0)] * 2),
        ({"attention_chunk_size": 16, "layer_types": ["chunked_attention"]}, [("chunked_local", 16)]),
    ],
)
def test_how_far_layers_reach(fields: dict[str, Any], kinds: list[tuple[str, int]]) -> None:
    assert layer_attention_types(config(**fields)) == kinds


@pytest.mark.parametrize(
    ("types", "groups"),
    [
        ("fff", [(0, 1, 2)]),
        ("sfssf", [(0, 3), (2,), (1, 4)]),
        ("ssssfff", [(0, 1, 2, 3), (4, 5, 6)]),
        ("ssfssfs", [(0, 4), (1, 6), (3,), (2, 5)]),
        ("sf", [(0,), (1,)]),
        ("ssff", [(0, 1), (2, 3)]),
        # Half as many again is too much for one size.
        ("sssff", [(0, 2), (1,), (3, 4)]),
    ],
)
def test_layers_share_tables_in_groups_of_a_size(types: str, groups: list[tuple[int, ...]]) -> None:
    names = [{"s": LIMITED, "f": WHOLE}[letter] for letter in types]
    found = group_layers(config(sliding_window=8, layer_types=names))
    assert [group.layers for group in found] == groups
    assert [group.index for group in found] == list(range(len(groups)))
    placed = layer_slots(found)
    assert sorted(placed) == list(range(len(types)))
    assert all(groups[group][slot] == layer for layer, (group, slot) in placed.items())
