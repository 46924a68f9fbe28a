"""Embedders that fail or return invalid vectors: entries have exact hits only."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.embedder import EmbeddingCache, load_embedder
from kvproxy.index.policies.policy import Neighbour
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Store
from tests.index.conftest import MakeStore
from tests.index.doubles import HashEmbedder, Held
from tests.index.entries import make_entry


class Odd(HashEmbedder):
    """Fails in the way that the first word of a text names."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if any(text.startswith("raises") for text in texts):
            raise ValueError("no such text")
        vectors = super().embed(texts)
        for vector, text in zip(vectors, texts, strict=True):
            odd = {"nan": np.nan, "inf": np.inf, "zero": 0.0, "long": 7.0}.get(text.split()[0])
            if odd is not None:
                vector *= odd
        return vectors


def cache(store: Store, embedder: HashEmbedder | None = None) -> SemanticCache:
    return SemanticCache(store, embedder or Odd(), ThresholdPolicy(0.8, guards=()))


async def test_an_entry_without_a_vector_has_exact_hits_only(make_store: MakeStore) -> None:
    store = make_store()
    semantic = cache(store)
    for odd in ("nan", "inf", "zero", "raises"):
        bad, good = make_entry(f"{odd} words of a question"), make_entry(f"long words of a question {odd}")
        assert await semantic.insert(bad)
        for entry in (good, make_entry(f"{odd} other words")):
            await semantic.insert(entry)
        assert store.find(bad.key) is not None
        with pytest.raises(EmbedderError):
            await semantic.lookup("n", bad.prompt)
        found = await semantic.lookup("n", good.prompt)
        assert found.similarity == pytest.approx(1.0, abs=1e-5)
        assert found.entry == good
        assert {candidate.prompt.split()[0] for candidate in found.candidates} == {"long"}
    # A restart embeds nothing again.
    assert cache(store).rebuild() == 0
    for number, word in enumerate(("nan", "inf", "zero", "raises", *["fine"] * 5)):
        store.put(make_entry(f"{word} question {number}"))
    semantic = cache(store)
    assert semantic.rebuild() == 5
    assert (await semantic.lookup("n", "fine question 7")).entry is not None
    assert store.count() == 12 + 9


async def test_entries_that_a_broken_embedder_leaves_are_embedded_later(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(make_entry())
    embedder = Held()
    embedder.broken = True
    semantic = cache(store, embedder)
    assert semantic.rebuild() == 0
    for text in ("one", "two", "three"):
        assert await semantic.insert(make_entry(f"{text} new question"))
    await semantic.insert_deferred(make_entry("deferred question"))
    await semantic.deferred_embeddings.wait_until_idle()
    semantic.maintain()
    messages = [record.getMessage() for record in caplog.records if "new entries" in record.getMessage()]
    assert messages == ["new entries have exact hits only, until they can be embedded: embedder 'hash' failed: broken"]
    embedder.broken = False
    semantic.maintain()
    assert "all entries are embedded" in caplog.text
    assert store.missing_vectors(HashEmbedder.name, 10) == []
    assert (await semantic.lookup("n", "two new question")).entry is not None
    calls = len(embedder.calls)
    semantic.maintain()
    assert len(embedder.calls) == calls


async def test_a_text_that_cannot_be_embedded_fails_no_other_lookup(store: Store) -> None:
    semantic = SemanticCache(store, Odd(), ThresholdPolicy(0.9, guards=()))
    await semantic.insert(make_entry("text"))
    texts = ["raises here", *(f"text {number}" for number in range(20)), "nan here"]
    results = await asyncio.gather(*(semantic.lookup("n", text) for text in texts), return_exceptions=True)
    assert [isinstance(result, EmbedderError) for result in results] == [True, *[False] * 20, True]


@pytest.mark.parametrize("shape", [(1, 63), (2, 64), (64,)])
def test_vectors_of_a_wrong_shape_are_an_error(shape: tuple[int, ...]) -> None:
    class Wrong(HashEmbedder):
        def embed(self, texts: Sequence[str]) -> np.ndarray:
            return np.ones(shape, np.float32)

    with pytest.raises(EmbedderError, match="instead of"):
        EmbeddingCache(Wrong()).vector("text")


def test_a_similarity_of_nan_is_not_a_hit() -> None:
    (served,) = ThresholdPolicy(0.5, guards=()).decide("one", [Neighbour("one", float("nan"))]).decisions
    assert served.verdict == "low similarity"


async def test_a_text_that_the_embedder_cannot_read_has_exact_hits_only(store: Store) -> None:
    semantic = SemanticCache(store, load_embedder(), ThresholdPolicy(0.8, guards=()))
    # Two special tokens are added to at most 126.
    for text in ("What does it mean?", "¿Qué significa «año»? — “Jahr”, naïve Größe: 10 €", "word " * 126):
        assert semantic.can_read(text)
    await semantic.insert(make_entry("What does it mean?"))
    for text in ("What does 👍 mean?", "Translate 貓 to English", "สวัสดี แปลว่าอะไร", "word " * 127):
        assert not semantic.can_read(text)
        entry = make_entry(text)
        await semantic.insert(entry)
        found = store.find(entry.key)
        assert found is not None
        assert not found.semantic
        assert (await semantic.lookup("n", text)).candidates == ()
        # An entry from before the check existed.
        store.put(make_entry(text + " "))
    assert semantic.rebuild() == 0
    assert store.missing_vectors(semantic._embedder.name, 9) == []
