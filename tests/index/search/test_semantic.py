"""Similar questions are found in their own namespace only, and guards keep opposites apart."""

from pathlib import Path

import numpy as np
import pytest

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.embedder import EmbeddingCache, load_embedder
from kvproxy.index.policies.guards import GUARDS
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


@pytest.mark.parametrize(
    ("guard", "one", "other"),
    [
        ("numbers", "How do I open port 80?", "How do I open port 8080?"),
        ("numbers", "What are the two caches?", "What are the three caches?"),
        ("numbers", "What if I miss one pill?", "What if I miss two pills?"),
        ("negation", "Why does it work?", "Why doesn't it work?"),
        ("opposites", "Give arguments for nuclear power", "Give arguments against nuclear power"),
        ("opposites", "How do I enable 2FA?", "How do I disable 2FA?"),
        ("quotes", 'What does "stop" mean?', 'What does "seed" mean?'),
        ("code", "What does max_tokens do?", "What does top_p do?"),
        ("code", "What does --port do?", "What does --host do?"),
        ("names", "What is the weather in Paris?", "What is the weather in Rome?"),
        ("names", "How do I convert USD to EUR?", "How do I convert USD to GBP?"),
        ("units", "Which phone is best under Rs. 3000?", "Which phone is best under $3000?"),
        ("order", "How do I convert miles to kilometres?", "How do I convert kilometres to miles?"),
        ("time", "Is it open on Monday?", "Is it open on Sunday?"),
        ("signs", "What is the meaning of 👍?", "What is the meaning of 👎?"),
        ("signs", "Was bedeutet schon?", "Was bedeutet scho\u0308n?"),
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
        ("Who won the world cup?", "Which team won the world cup?"),
        ("How does one lose 5 kg?", "How do I lose 5 kg?"),
        ("Explain the hash chain.", "Please explain the hash chain"),
        ("Should I learn French and German?", "Should I learn German and French?"),
        ("Is Down’s Syndrome hereditary?", "Is Down's syndrome hereditary?"),
        ("Best earphone under INR 3000?", "Best earphone under Rs 3000?"),
        ("Was heißt «schön»?", "Was bedeutet scho\u0308n?"),
        ("Thanks 😀 what is a block?", "Thanks, what is a block?"),
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


async def test_a_cosine_alone_looks_at_the_five_nearest(tmp_path: Path) -> None:
    semantic = cache(tmp_path)
    await semantic.insert_many([make_entry(f"what is block number {number} of the pool") for number in range(8)])
    assert len((await semantic.lookup("n", "what is block number 9 of the pool")).candidates) == 5
