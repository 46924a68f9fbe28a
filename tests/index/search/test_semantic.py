"""Similar questions are found in their own namespace only, and guards keep opposites apart."""

from pathlib import Path

import numpy as np
import pytest

from kvproxy.index.models.embedder import EmbeddingCache
from kvproxy.index.policies.policy import Limits
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import SqliteStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry


def cache(path: Path, threshold: float = 0.8) -> SemanticCache:
    return SemanticCache(SqliteStore(path / "r.db"), HashEmbedder(), ThresholdPolicy(threshold))


async def test_lookup_stays_in_its_namespace(tmp_path: Path) -> None:
    semantic = cache(tmp_path)
    await semantic.insert(make_entry("what is a block here", namespace="a"))
    assert (await semantic.lookup("a", "what is a block here")).entry is not None
    assert (await semantic.lookup("b", "what is a block here")).candidates == ()


async def test_a_request_can_only_raise_the_threshold(tmp_path: Path) -> None:
    semantic = cache(tmp_path)
    await semantic.insert(make_entry("explain the free queue of blocks please sir"))
    near = "explain the free queue of blocks please here"
    assert (await semantic.lookup("n", near)).entry is not None
    assert (await semantic.lookup("n", near, limits=Limits(0.999))).entry is None
    far = "what is the speed of light in water"
    assert (await semantic.lookup("n", far, limits=Limits(-1.0))).entry is None


async def test_removed_and_expired_entries_are_not_served(tmp_path: Path) -> None:
    semantic = cache(tmp_path)
    gone, old = make_entry("one question about blocks"), make_entry("another thing entirely", expires=1.0)
    await semantic.insert(gone)
    await semantic.insert(old)
    assert len(semantic._store.delete([gone.id])) == 1
    assert (await semantic.lookup("n", gone.prompt)).entry is None
    lookup = await semantic.lookup("n", old.prompt)
    assert lookup.entry is None
    assert lookup.candidates[0].verdict == "expired"


async def test_indexes_are_rebuilt_from_the_store(tmp_path: Path) -> None:
    semantic = cache(tmp_path)
    for number in range(10):
        await semantic.insert(make_entry(f"question number {number}", namespace=str(number % 2)))
    again = cache(tmp_path)
    assert again.rebuild() == 0
    assert (await again.lookup("1", "question number 3")).entry is not None
    embedder = HashEmbedder(32)
    embedder.name = "another"
    other = SemanticCache(again._store, embedder, ThresholdPolicy(0.8))
    assert other.rebuild() == 10
    assert (await other.lookup("1", "question number 3")).similarity == pytest.approx(1.0, abs=1e-3)


def test_equal_texts_are_embedded_once() -> None:
    class Counting(HashEmbedder):
        batches: list[int] = []  # noqa: RUF012

        def embed(self, texts):  # type: ignore[no-untyped-def]
            self.batches.append(len(texts))
            return super().embed(texts)

    embeddings = EmbeddingCache(Counting(), size=10)
    vectors = embeddings.vectors([f"text {number % 10}" for number in range(40)])
    assert np.allclose(vectors[3], vectors[13])
    embeddings.vector("text 3")
    assert Counting.batches == [10]
    embeddings.vector("one more")
    assert embeddings.cached("text 3") is not None
    assert embeddings.cached("text 0") is None
