"""The default policy serves next to no near-miss: close questions that differ in what the answer depends on."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kvproxy.index.evaluation.replay import replay
from kvproxy.index.models.embedder import Embedder, load_embedder
from kvproxy.index.models.verifier.built_in import BuiltInVerifier
from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.learned.policy import LearnedPolicy
from kvproxy.index.policies.policy import Neighbour, Policy
from kvproxy.index.store.observations import ReplayObservations
from kvproxy.responses import build_policy
from kvproxy.settings import CacheSettings
from tests.index.policies.learned.test_replay import cluster_stream
from tests.reference.memory_observations import MemoryObservations

Cosines = Callable[[list[dict[str, str]]], np.ndarray]
DATA = Path(__file__).parents[1] / "data"


def read(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


PAIRS = read("opposites.jsonl")
# Written after guards and verifier were finished, to see how they do on what nobody had in mind.
FURTHER = read("near_misses.jsonl")
REWORDINGS = read("rewordings.jsonl")


def test_there_are_enough_of_every_kind() -> None:
    kinds = Counter(pair["category"] for pair in PAIRS)
    assert len({(pair["a"], pair["b"]) for pair in PAIRS}) >= 400
    assert set(kinds) == {guard.name for guard in GUARDS}
    assert min(kinds.values()) >= 15


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The verifier reads each pair once, for all policies and both ways round: it puts them in order itself."""
    known: dict[tuple[str, ...], float] = {}
    read = BuiltInVerifier._one

    def remembered(self: BuiltInVerifier, pair: tuple[str, str]) -> float:
        ordered = tuple(sorted(pair))
        if ordered not in known:
            known[ordered] = read(self, pair)
        return known[ordered]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BuiltInVerifier, "_one", remembered)
        yield


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder()


@pytest.fixture(scope="module")
def cosines(embedder: Embedder) -> Cosines:
    """Cosines of pairs by the real embedder, which reads each text once for all tests."""
    known: dict[str, np.ndarray] = {}

    def of(pairs: list[dict[str, str]]) -> np.ndarray:
        new = sorted({pair[side] for pair in pairs for side in "ab"} - set(known))
        known.update(zip(new, embedder.embed(new) if new else (), strict=True))
        found: np.ndarray = np.array([known[pair["a"]] @ known[pair["b"]] for pair in pairs])
        return found

    return of


@pytest.fixture(scope="module")
def served(embedder: Embedder, cosines: Cosines) -> Callable[[list[dict[str, str]]], list[tuple[str, str]]]:
    """With the real embedder and verifier, whichever of the two questions is the cached one, before anything is learned."""
    return serving(build_policy(CacheSettings(), MemoryObservations(), embedder.name), cosines)


@pytest.fixture(scope="module")
def served_after_learning(
    embedder: Embedder, cosines: Cosines
) -> Callable[[list[dict[str, str]]], list[tuple[str, str]]]:
    """The same with what was learned from a stream at the loosest bound, where whole classes may be served by their score."""
    log = ReplayObservations()
    replay(cluster_stream(2000), LearnedPolicy(log, None, 0.05, 0.0, guards=()))
    policy = build_policy(CacheSettings(max_error=0.05), log, embedder.name)
    assert isinstance(policy, LearnedPolicy)
    assert policy.status("").serves
    return serving(policy, cosines)


def serving(policy: Policy, cosines: Cosines) -> Callable[[list[dict[str, str]]], list[tuple[str, str]]]:
    """The pairs, as (question, cached question), that a policy serves."""
    assert policy.name == "learned"

    def accepted(pairs: list[dict[str, str]]) -> list[tuple[str, str]]:
        return [
            (pair[one], pair[other])
            for pair, cosine in zip(pairs, cosines(pairs).tolist(), strict=True)
            for one, other in (("a", "b"), ("b", "a"))
            if policy.decide(pair[one], [Neighbour(pair[other], cosine, "a")]).chosen is not None
        ]

    return accepted


@pytest.mark.parametrize("pairs", [PAIRS, FURTHER], ids=["opposites", "further"])
def test_the_default_policy_serves_next_to_no_near_miss(
    pairs: list[dict[str, str]], served: Callable[..., list[str]]
) -> None:
    # Both ways round: one in two hundred.
    assert len(served(pairs)) <= 0.005 * 2 * len(pairs)


@pytest.mark.parametrize("pairs", [PAIRS, FURTHER], ids=["opposites", "further"])
def test_it_serves_even_fewer_once_it_has_learned(
    pairs: list[dict[str, str]], served_after_learning: Callable[..., list[str]]
) -> None:
    # So that there is room for what classes that were learned answer by mistake.
    assert len(served_after_learning(pairs)) <= 0.002 * 2 * len(pairs)


def test_it_still_serves_rewordings_once_it_has_learned(served_after_learning: Callable[..., list[str]]) -> None:
    assert len(served_after_learning(REWORDINGS)) >= 0.3 * 2 * len(REWORDINGS)


def test_the_default_policy_serves_rewordings(served: Callable[..., list[str]]) -> None:
    assert len(served(REWORDINGS)) >= 0.6 * 2 * len(REWORDINGS)


def test_the_cosine_alone_would_serve_near_misses(cosines: Cosines) -> None:
    assert sum(cosines(PAIRS) >= 0.95) > 50


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
