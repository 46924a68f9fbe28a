"""Similar questions are found in their own namespace only, and guards keep opposites apart."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.embedder import HashEmbedder, MicroBatcher, load_embedder
from index.errors import EmbedderError
from index.guards import GUARDS
from index.policies.policy import Limits
from index.policies.threshold import ThresholdPolicy
from index.semantic import SemanticCache
from index.store import ResponseStore
from index.vectors import VectorIndex
from tests.index.entries import make_entry


def cache(path: Path, threshold: float = 0.8) -> SemanticCache:
    return SemanticCache(ResponseStore(path / "r.db"), HashEmbedder(), ThresholdPolicy(threshold))


async def test_lookup_stays_in_its_namespace(tmp_path: Path) -> None:
    semantic = cache(tmp_path)
    await semantic.insert(make_entry("what is a block here", namespace="a"))
    assert (await semantic.lookup("a", "what is a block here")).entry is not None
    elsewhere = await semantic.lookup("b", "what is a block here")
    assert elsewhere.entry is None
    assert elsewhere.candidates == ()


async def test_threshold_of_a_request_is_only_ever_stricter(tmp_path: Path) -> None:
    semantic = cache(tmp_path)
    await semantic.insert(make_entry("explain the free queue of blocks please sir"))
    near = "explain the free queue of blocks please here"
    found = await semantic.lookup("n", near)
    assert found.entry is not None
    assert (await semantic.lookup("n", near, limits=Limits(0.999))).entry is None
    far = "what is the speed of light in water"
    assert (await semantic.lookup("n", far, limits=Limits(-1.0))).entry is None


async def test_removed_and_expired_entries_are_not_served(tmp_path: Path) -> None:
    semantic = cache(tmp_path)
    gone, old = make_entry("one question about blocks"), make_entry("another thing entirely", expires=1.0)
    await semantic.insert(gone)
    await semantic.insert(old)
    assert await semantic.remove([gone.id]) == 1
    assert (await semantic.lookup("n", gone.prompt)).entry is None
    lookup = await semantic.lookup("n", old.prompt)
    assert lookup.entry is None
    assert lookup.candidates[0].verdict == "expired"


async def test_indexes_are_rebuilt_from_the_store(tmp_path: Path) -> None:
    semantic = cache(tmp_path)
    for number in range(10):
        await semantic.insert(make_entry(f"question number {number}", namespace=str(number % 2)))
    again = cache(tmp_path)
    assert again.rebuild() == 10
    assert (await again.lookup("1", "question number 3")).entry is not None
    other = SemanticCache(again._store, HashEmbedder(32), ThresholdPolicy(0.8))
    other._embedder.name = "another"
    assert other.rebuild() == 10
    assert (await other.lookup("1", "question number 3")).similarity == pytest.approx(1.0, abs=1e-3)


VECTORS = st.lists(st.integers(0, 10**6), min_size=1, max_size=60, unique=True)


@settings(deadline=None, max_examples=40)
@given(VECTORS, st.data())
def test_search_is_exact_while_small(seeds: list[int], data: st.DataObject) -> None:
    vectors = {str(seed): np.random.default_rng(seed).standard_normal(8).astype(np.float32) for seed in seeds}
    index = VectorIndex(8)
    index.add(list(vectors), np.stack(list(vectors.values())))
    gone = set(data.draw(st.lists(st.sampled_from(list(vectors)), unique=True)))
    index.remove(gone)
    left = {id: vector for id, vector in vectors.items() if id not in gone}
    query = np.random.default_rng(1).standard_normal(8).astype(np.float32)
    expected = sorted(left, key=lambda id: -float(left[id] @ query))[:5]
    assert [id for id, _ in index.search(query, 5)] == expected


def test_a_large_index_still_finds_its_own_and_forgets_the_deleted() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((3000, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = [str(number) for number in range(3000)]
    index = VectorIndex(16, flat_limit=500)
    for start in range(0, 3000, 300):
        index.add(ids[start : start + 300], vectors[start : start + 300])
    index.remove(ids[:1200])
    assert len(index) == 1800
    found = [index.search(vectors[number], 1)[0][0] for number in range(1200, 3000, 9)]
    assert np.mean([id == str(number) for id, number in zip(found, range(1200, 3000, 9), strict=True)]) > 0.95
    assert all(int(id) >= 1200 for id, _ in index.search(vectors[5], 50))


async def test_what_comes_together_is_embedded_together() -> None:
    class Counting(HashEmbedder):
        batches: list[int] = []  # noqa: RUF012

        def embed(self, texts):  # type: ignore[no-untyped-def]
            self.batches.append(len(texts))
            return super().embed(texts)

    batcher = MicroBatcher(Counting())
    texts = [f"text {number % 10}" for number in range(40)]
    vectors = await asyncio.gather(*(batcher.embed(text) for text in texts))
    assert np.allclose(vectors[3], vectors[13])
    assert sum(Counting.batches) == 10
    assert len(Counting.batches) <= 2


@pytest.mark.parametrize(
    ("guard", "one", "other"),
    [
        ("numbers", "How do I open port 80?", "How do I open port 8080?"),
        ("numbers", "What are the two caches?", "What are the three caches?"),
        ("negation", "Why does it work?", "Why doesn't it work?"),
        ("opposites", "How do I enable 2FA?", "How do I disable 2FA?"),
        ("quotes", 'What does "stop" mean?', 'What does "seed" mean?'),
        ("code", "What does max_tokens do?", "What does top_p do?"),
        ("code", "What does --port do?", "What does --host do?"),
        ("names", "What is the weather in Paris?", "What is the weather in Rome?"),
        ("order", "How do I convert miles to kilometres?", "How do I convert kilometres to miles?"),
        ("time", "Is it open on Monday?", "Is it open on Sunday?"),
    ],
)
def test_guards_veto_near_misses(guard: str, one: str, other: str) -> None:
    vetoes = {each.name: each.vetoes for each in GUARDS}
    assert vetoes[guard](one, other)
    assert vetoes[guard](other, one)
    assert not any(veto(one, one) for veto in vetoes.values())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is a block?", "Can you tell me what a block is?"),
        ("How do I steer the cache?", "How can I steer the cache?"),
        ("what is the free queue", "What is the free queue?"),
        ("Explain the hash chain.", "Please explain the hash chain"),
    ],
)
def test_guards_let_rewordings_pass(one: str, other: str) -> None:
    assert not [guard.name for guard in GUARDS if guard.vetoes(one, other)]


def test_the_packaged_embedder_knows_rewordings() -> None:
    embedder = load_embedder()
    one, other, far = embedder.embed(["What is a block?", "Can you tell me what a block is?", "Is coffee healthy?"])
    assert np.linalg.norm(one) == pytest.approx(1.0, abs=1e-5)
    assert one @ other > 0.95
    assert one @ far < 0.3
    with pytest.raises(EmbedderError, match="no/such"):
        load_embedder("no/such-model")


def test_search_looks_past_deleted_neighbours() -> None:
    generator = np.random.default_rng(2)
    query = np.eye(8, dtype=np.float32)[0]
    near = query + 0.01 * generator.standard_normal((99, 8)).astype(np.float32)
    far = query + generator.standard_normal((400, 8)).astype(np.float32)
    vectors = np.concatenate([near, far]) / np.linalg.norm(np.concatenate([near, far]), axis=1, keepdims=True)
    index = VectorIndex(8)
    index.add([str(number) for number in range(499)], vectors)
    index.remove([str(number) for number in range(99)])
    expected = 99 + np.argsort(-(vectors[99:] @ query))[:5]
    assert [int(id) for id, _ in index.search(query, 5)] == expected.tolist()
