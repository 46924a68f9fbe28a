"""The default policy serves almost no near-miss: similar questions that need different answers."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from kvproxy.index.evaluation.stream_replay import InMemoryObservations, replay
from kvproxy.index.models.embedder import Embedder, load_embedder
from kvproxy.index.models.verifier.built_in import BuiltInVerifier
from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import Neighbour, Policy
from kvproxy.library.configured_cache import build_policy
from kvproxy.settings import CacheSettings
from tests.index.policies.directions import make_rewordings, make_swaps, read_pairs
from tests.index.policies.learned.test_replay import cluster_stream
from tests.reference.memory_observations import MemoryObservations

Cosine = Callable[[dict[str, str]], float]


PAIRS = read_pairs("opposites")
# Held out: written after the guards and the verifier were finished.
FURTHER = read_pairs("near_misses")
REWORDINGS = read_pairs("rewordings")


def test_each_guard_has_enough_pairs() -> None:
    kinds = Counter(pair["category"] for pair in PAIRS)
    assert len({(pair["a"], pair["b"]) for pair in PAIRS}) >= 400
    assert set(kinds) == {guard.name for guard in GUARDS}
    assert min(kinds.values()) >= 15


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Let the verifier read each pair once, for all policies."""
    read = functools.cache(BuiltInVerifier._logit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BuiltInVerifier, "_logit", lambda self, pair: read(self, tuple(sorted(pair))))
        yield


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder()


@pytest.fixture(scope="module")
def cosine(embedder: Embedder) -> Cosine:
    """Return the cosine of a pair by the packaged embedder."""
    vector = functools.cache(lambda text: embedder.embed([text])[0])
    return lambda pair: float(vector(pair["a"]) @ vector(pair["b"]))


@functools.cache
def is_vetoed(one: str, other: str) -> bool:
    return any(guard.vetoes(one, other) for guard in GUARDS)


def share_served(policy: Policy, pairs: list[dict[str, str]], cosine: Cosine) -> float:
    """Return the share of pairs that a policy serves. Guards and verifier do not depend on the order of a pair."""
    served = 0
    for pair in pairs:
        # A vetoed pair must not be served whatever its cosine is.
        near = Neighbour(pair["b"], 1.0 if is_vetoed(pair["a"], pair["b"]) else cosine(pair), "a")
        served += policy.decide(pair["a"], [near]).chosen is not None
    return served / len(pairs)


@pytest.mark.parametrize(
    ("has_learned", "near_misses", "rewordings"),
    # Learned classes may be wrong too, so their limit is lower.
    [(False, 0.005, 0.6), (True, 0.002, 0.3)],
    ids=["new", "learned"],
)
def test_the_default_policy_serves_rewordings_but_almost_no_near_miss(
    has_learned: bool, near_misses: float, rewordings: float, embedder: Embedder, cosine: Cosine
) -> None:
    policy = build_policy(CacheSettings(), MemoryObservations(), embedder.name)
    if has_learned:
        # At the loosest bound.
        log = InMemoryObservations()
        replay(cluster_stream(1500), LearnedPolicy(log, None, 0.05, 0.0, guards=()))
        policy = build_policy(CacheSettings(max_error=0.05), log, embedder.name)
    assert isinstance(policy, LearnedPolicy)
    assert policy.status("").serves is has_learned
    for pairs in (PAIRS[::4], FURTHER[::8]):
        assert share_served(policy, pairs, cosine) <= near_misses
    assert share_served(policy, REWORDINGS[::4], cosine) >= rewordings


@pytest.mark.parametrize("second", [False, True])
def test_no_exchanged_direction_is_served_and_most_kept_ones_are(
    second: bool, embedder: Embedder, cosine: Cosine
) -> None:
    policy = build_policy(CacheSettings(), MemoryObservations(), embedder.name)
    swaps, kept = make_swaps(second), make_rewordings(second)
    assert (len(swaps), len(kept)) == (300, 100)
    # A part of them has all templates; `python -m tests.benchmarks.trust` tries them all.
    assert share_served(policy, swaps[::5], cosine) == 0
    assert share_served(policy, kept[::4], cosine) >= 0.65


def test_the_cosine_alone_would_serve_near_misses(cosine: Cosine) -> None:
    some = PAIRS[::4]
    assert sum(cosine(pair) >= 0.95 for pair in some) > 0.1 * len(some)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_each_guard_catches_most_of_its_kind_both_ways(guard) -> None:  # type: ignore[no-untyped-def]
    mine = [pair for pair in PAIRS if pair["category"] == guard.name]
    caught = [pair for pair in mine if is_vetoed(pair["a"], pair["b"])]
    assert any(guard.vetoes(pair["a"], pair["b"]) for pair in mine)
    assert len(caught) >= 0.7 * len(mine)
    assert all(guard.vetoes(pair["a"], pair["b"]) == guard.vetoes(pair["b"], pair["a"]) for pair in PAIRS)
    assert not any(guard.vetoes(pair["a"], pair["a"]) for pair in PAIRS)
