"""The default policy serves no near-miss: close questions that differ in what the answer depends on."""

import json
from collections import Counter
from pathlib import Path

import pytest

from index.embedder import load_embedder
from index.guards import GUARDS
from index.policies.policy import Neighbour
from kvproxy.proxy.semantic import build_policy
from kvproxy.settings import CacheSettings

PAIRS = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "opposites.jsonl").read_text("utf-8").splitlines()
]


def test_there_are_enough_of_every_kind() -> None:
    kinds = Counter(pair["category"] for pair in PAIRS)
    assert len({(pair["a"], pair["b"]) for pair in PAIRS}) >= 400
    assert set(kinds) == {guard.name for guard in GUARDS}
    assert min(kinds.values()) >= 15


def test_the_default_policy_serves_none() -> None:
    """With the real embedder and verifier, whichever of the two questions is the cached one."""
    policy, embedder = build_policy(CacheSettings()), load_embedder()
    assert policy.name == "checked"
    similarity = (embedder.embed([pair["a"] for pair in PAIRS]) * embedder.embed([pair["b"] for pair in PAIRS])).sum(1)
    accepted = [
        (pair["a"], pair["b"])
        for pair, cosine in zip(PAIRS, similarity.tolist(), strict=True)
        for one, other in (("a", "b"), ("b", "a"))
        if policy.decide(pair[one], [Neighbour(pair[other], cosine)])[0].verdict == "accepted"
    ]
    assert accepted == []
    # The cosine alone would have served some.
    assert sum(similarity >= 0.95) > 50


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_each_guard_catches_most_of_its_kind_both_ways(guard) -> None:  # type: ignore[no-untyped-def]
    mine = [pair for pair in PAIRS if pair["category"] == guard.name]
    caught = [pair for pair in mine if any(each.vetoes(pair["a"], pair["b"]) for each in GUARDS)]
    assert any(guard.vetoes(pair["a"], pair["b"]) for pair in mine)
    assert len(caught) >= 0.7 * len(mine)
    assert all(guard.vetoes(pair["a"], pair["b"]) == guard.vetoes(pair["b"], pair["a"]) for pair in PAIRS)
    assert not any(guard.vetoes(pair["a"], pair["a"]) for pair in PAIRS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is a block?", "Can you tell me what a block is?"),
        ("How do I install it?", "What is the way to install it?"),
        ("How far is 10 kilometres?", "How far is 10 km?"),
        ("Tell me about the free queue", "What is the free queue?"),
        ("Why is the sky blue?", "why is the sky blue"),
        ("What happens when I restart it?", "What happens if I restart it?"),
    ],
)
def test_rewordings_pass(one: str, other: str) -> None:
    assert not [guard.name for guard in GUARDS if guard.vetoes(one, other)]
