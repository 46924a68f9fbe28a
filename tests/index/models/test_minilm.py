"""The packaged embedder in ONNX Runtime agrees with its model in torch; a model of the user replaces it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvproxy.index.errors import EmbedderError, VerifierError
from kvproxy.index.models.embedder import Embedder, SentenceEmbedder, load_embedder
from kvproxy.index.models.minilm.embedder import MiniLMEmbedder
from kvproxy.index.models.minilm.graph_builder import quantize_in_pairs
from kvproxy.index.models.minilm.onnx_files import (
    OnnxFiles,
    computes_int8_exactly,
    default_onnx_files,
    open_session,
)
from kvproxy.index.models.minilm.weights import load_tokenizer, packaged_model
from kvproxy.index.models.verifier import load_verifier
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Store
from tests.commands.run import NOWHERE
from tests.index.entries import make_entry

TEXTS = [
    "What is a block?",
    "How do I reset the password of my account?",
    "How can I reset my password?",
    "",
    "Übersetze 猫 ins Deutsche, bitte — danke! 🙂",
    "Why does `max_tokens` stop my answer after 16 tokens? " * 4,
    "word " * 300,
]


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    return load_embedder(str(packaged_model())).embed(TEXTS)


def test_float_vectors_equal_those_of_sentence_transformers_up_to_the_rounding_of_the_weights(
    reference: np.ndarray,
) -> None:
    embedder = MiniLMEmbedder(int8=False, files=OnnxFiles([]))
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dim)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, reference, atol=5e-4)
    assert embedder.name == "all-MiniLM-L6-v2"


def test_eight_bit_vectors_are_close_and_have_another_name(reference: np.ndarray) -> None:
    if not computes_int8_exactly(default_onnx_files()):
        pytest.skip("this processor's 8-bit products are not exact, so that float32 is used")
    embedder = load_embedder()
    vectors = embedder.embed(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    cosines = (vectors * reference).sum(axis=1)
    assert [text for text, cosine in zip(TEXTS, cosines, strict=True) if text and cosine < 0.995] == []
    assert np.abs(vectors @ vectors.T - reference @ reference.T).max() < 0.05
    assert embedder.name == "all-MiniLM-L6-v2-int8.4"


def test_sums_of_16_bits_hold_the_products_of_adjacent_weights() -> None:
    matrix = np.random.default_rng(0).standard_normal((64, 384)).astype(np.float32)
    matrix[0, :2] = matrix[1, 3:5] = 100.0
    integers, scales = quantize_in_pairs(matrix)
    magnitudes = np.abs(integers.astype(int))
    assert (magnitudes[0::2] + magnitudes[1::2]).max() <= 128
    np.testing.assert_allclose(integers.T * scales[:, None], matrix, atol=scales.max() / 2 * 1.001)


@pytest.mark.parametrize("narrow_sums", [False, True])
def test_vectors_do_not_depend_on_the_width_of_the_sums(narrow_sums: bool) -> None:
    """On x86 processors without VNNI, the widths have kernels of their own."""

    class OneWidth(OnnxFiles):
        def open(self, kind: str, source_digest: str, build: Callable[[], bytes], **options: Any) -> Any:
            return open_session(build(), narrow_sums=narrow_sums)

    vectors = MiniLMEmbedder(int8=True, files=OneWidth([])).embed(TEXTS)
    assert (vectors == MiniLMEmbedder(int8=True).embed(TEXTS)).all()


async def test_vectors_of_an_older_graph_are_computed_again(store: Store) -> None:
    elsewhere = np.eye(1, MiniLMEmbedder.dim, dtype=np.float32)[0]
    store.put(make_entry("What is a block?"), elsewhere, "all-MiniLM-L6-v2-int8")
    semantic = SemanticCache(store, MiniLMEmbedder(int8=True), ThresholdPolicy(0.8, guards=()))
    assert semantic.rebuild() == 1
    assert semantic.rebuild() == 0
    assert (await semantic.lookup("n", "What is a block?")).similarity == pytest.approx(1, abs=1e-3)


def test_a_vector_does_not_depend_on_the_batch() -> None:
    embedder = load_embedder()
    together = embedder.embed(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        assert (embedder.embed([text])[0] == vector).all()
    assert embedder.embed([]).shape == (0, embedder.dim)


@pytest.mark.parametrize("most", [16, 128])
def test_long_texts_are_truncated_and_the_longer_one_of_a_pair_first(most: int) -> None:
    tokenizer = load_tokenizer(packaged_model(), most)
    assert len(tokenizer.encode("cache " * 1000).ids) == most
    pair = tokenizer.encode("what is a block", "cache " * 1000)
    assert len(pair.ids) == most
    # Two marks around the first text.
    assert pair.type_ids.count(0) == 4 + 2


@pytest.mark.parametrize(("product", "exact"), [(2 * 255 * 127, True), (2**15 - 1, False), (0, False)])
def test_a_processor_with_saturating_products_uses_no_integers(product: float, exact: bool) -> None:
    class Cutting:
        """Graph files whose graphs compute one and the same."""

        def open(self, name: str, source_digest: str, build: Any, **options: Any) -> Any:
            return self

        def run(self, outputs: Any, given: dict[str, np.ndarray]) -> list[np.ndarray]:
            assert given["tokens"].tolist() == [[[255, 255]]]
            return [np.array([[[product]]], np.float32)]

    assert computes_int8_exactly(Cutting()) is exact  # type: ignore[arg-type]


@pytest.mark.parametrize(("said", "reason"), [("first\nsecond", "first"), ("", "OSError")])
def test_an_error_of_a_model_is_one_line(
    said: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(said)

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", fail)
    with pytest.raises(EmbedderError, match=rf"cannot load embedder .* \({reason}\): give a folder"):
        load_embedder(str(tmp_path))


@pytest.mark.parametrize(("load", "error"), [(load_embedder, EmbedderError), (load_verifier, VerifierError)])
@pytest.mark.parametrize("is_cached", [False, True])
def test_without_a_network_the_hub_is_not_asked_for_a_model(
    load: Callable[[str], object],
    error: type[Exception],
    is_cached: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[bool] = []

    def fail(name: str, *, local_files_only: bool, **options: Any) -> None:
        given.append(local_files_only)
        raise OSError("damaged")

    for name in ("SentenceTransformer", "CrossEncoder"):
        monkeypatch.setattr(f"sentence_transformers.{name}", fail)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    if is_cached:
        (tmp_path / "models--org--model/snapshots").mkdir(parents=True)
    says = "damaged" if is_cached else f"it is not in the local cache, and {NOWHERE} cannot be reached"
    with pytest.raises(error, match=rf"\({says}\): give a folder, a cached"):
        load("org/model")
    assert given == [True] * is_cached


def cache_of(store: Store, embedder: Embedder) -> SemanticCache:
    return SemanticCache(store, embedder, ThresholdPolicy(0.8, guards=()))


def model_in(folder: Path, width: int, seed: int) -> None:
    """A sentence-transformers model of random weights."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    base = folder.with_name(folder.name + "-base")
    shape = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=30_522, **shape)).save_pretrained(base)
    for file in packaged_model().glob("*token*"):
        (base / file.name).write_bytes(file.read_bytes())
    transformer = Transformer(str(base))
    SentenceTransformer(modules=[transformer, Pooling(width)]).save(str(folder))


async def test_another_model_in_the_same_folder_embeds_everything_again(tmp_path: Path, store: Store) -> None:
    folder = tmp_path / "model"
    model_in(folder, 32, seed=0)
    first = cache_of(store, load_embedder(str(folder)))
    await first.insert(make_entry("What is a block?"))
    again = load_embedder(str(folder))
    # Vectors are normalised even if the model does not do so.
    assert np.linalg.norm(again.embed(["one question", "another"]), axis=1) == pytest.approx(1.0, abs=1e-5)
    assert isinstance(again, SentenceEmbedder)
    assert [again.can_read(text) for text in ("What is it?", "What is 👍?", "long " * 600)] == [True, False, False]
    assert cache_of(store, again).rebuild() == 0
    model_in(folder, 48, seed=1)
    other = cache_of(store, load_embedder(str(folder)))
    assert other.rebuild() == 1
    assert (await other.lookup("n", "What is a block?")).similarity == pytest.approx(1.0, abs=1e-3)
