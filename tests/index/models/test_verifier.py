"""The built-in verifier, and a verifier of the user."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvproxy.index.errors import VerifierError
from kvproxy.index.models.minilm.onnx_files import OnnxFiles
from kvproxy.index.models.minilm.weights import (
    base_weights,
    load_tokenizer,
    merge_adapter,
    packaged_model,
    read_tensors,
)
from kvproxy.index.models.verifier import CosineBound, load_verifier
from kvproxy.index.models.verifier.built_in import ADAPTER, MAX_TOKENS, RANGES, BuiltInVerifier, PlattScaling
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.policy import Neighbour
from training.verifier.network import CrossEncoder, pad

SAME = [
    ("How do I reset my password?", "How can I reset my password?"),
    ("What is the capital of France?", "Can you tell me what the capital of France is?"),
    ("How can I lose weight fast?", "What is the fastest way to lose weight?"),
    ("What is a block?", "Can you tell me what a block is?"),
]
OTHER = [
    ("How do I enable two-factor authentication?", "How do I disable two-factor authentication?"),
    ("What is the capital of France?", "What is the capital of Spain?"),
    ("How do I convert miles to kilometres?", "How do I convert kilometres to miles?"),
    ("What is new in Python 3.11?", "What is new in Python 3.12?"),
    ("How do I cook rice?", "Who won the world cup in 1998?"),
]


@pytest.fixture(scope="module")
def verifier() -> BuiltInVerifier:
    return BuiltInVerifier.load()


def test_rewordings_score_high_and_near_misses_low(verifier: BuiltInVerifier) -> None:
    assert verifier.score(SAME).min() > 0.8
    assert verifier.score(OTHER).max() < 0.2


def test_a_score_does_not_depend_on_order_or_batch(verifier: BuiltInVerifier) -> None:
    pairs = SAME + OTHER
    scores = verifier.score(pairs)
    assert (scores.dtype, scores.shape) == (np.float32, (len(pairs),))
    assert (scores == verifier.score([(other, one) for one, other in pairs])).all()
    alone = BuiltInVerifier.load()  # The first one has the scores of these pairs in memory.
    assert (scores == np.concatenate([alone.score([pair]) for pair in pairs])).all()
    assert verifier.score([]).shape == (0,)


def test_empty_and_very_long_texts_have_a_score(verifier: BuiltInVerifier) -> None:
    scores = verifier.score([("", ""), ("word " * 1000, "word"), ("", "What is a block?")])
    assert ((scores >= 0) & (scores <= 1)).all()


def test_both_graphs_have_the_logits_of_the_network(verifier: BuiltInVerifier) -> None:
    adapter, _ = read_tensors(ADAPTER)
    folder = packaged_model()
    trained = {name: value for name, value in adapter.items() if not name.startswith(RANGES)}
    network = CrossEncoder(merge_adapter(base_weights(folder), trained)).eval()
    pairs = [tuple(sorted(pair)) for pair in SAME + OTHER]
    with torch.no_grad():
        encoded = load_tokenizer(folder, MAX_TOKENS).encode_batch(pairs)
        wanted = network(*map(torch.from_numpy, pad(encoded))).numpy()
    exact = BuiltInVerifier(adapter, PlattScaling(1, 0), int8=False, files=OnnxFiles([]))
    np.testing.assert_allclose(exact.logits(pairs), wanted, atol=1e-3)
    assert np.abs(verifier.logits(pairs) - wanted).max() < 1.5


@pytest.mark.parametrize("exact", [True, False])
def test_it_uses_the_fast_kernels_if_they_compute_exactly(exact: bool) -> None:
    widths: dict[str, bool] = {}

    class Probe:
        def __init__(self, product: float) -> None:
            self.product = product

        def run(self, outputs: Any, given: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.array([[[self.product]]], np.float32)]

    class Files(OnnxFiles):
        def open(
            self, kind: str, source_digest: str, build: Callable[[], bytes], *, narrow_sums: bool = False
        ) -> Probe:
            widths[kind] = narrow_sums
            return Probe(2 * 255 * 127 if exact or not narrow_sums else 2**15 - 1)

    BuiltInVerifier.load(files=Files([]))
    assert widths["verifier"] is exact


def test_cosines_count_only_if_the_scaling_was_fitted_to_them() -> None:
    near, far = np.full(len(SAME), 0.95), np.full(len(SAME), 0.65)
    knows = load_verifier(embedder="all-MiniLM-L6-v2-int8.4")
    assert (knows.score(SAME, near) > knows.score(SAME, far)).all()
    other = load_verifier(embedder="intfloat/e5-small")
    assert (other.score(SAME, near) == other.score(SAME, far)).all()


def test_only_a_level_and_cosines_that_were_measured_have_a_bound() -> None:
    knows, other = (load_verifier(embedder=name) for name in ("all-MiniLM-L6-v2-int8.4", "intfloat/e5-small"))
    assert isinstance(knows, CosineBound)
    assert isinstance(other, CosineBound)
    assert [knows.least_cosine(level) > 0 for level in (0.95, 0.8, 0.79)] == [True, True, False]
    assert other.least_cosine(0.95) == 0


def test_a_pair_is_computed_once(verifier: BuiltInVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = ("Is this pair new?", "Is it a new pair?")
    first = verifier.score([pair])
    monkeypatch.delattr(verifier, "_session")
    assert verifier.score([pair[::-1], pair]).tolist() == [*first, *first]


def test_a_missing_model_is_an_error_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.index.models.verifier.built_in.ADAPTER", tmp_path / "none")
    with pytest.raises(VerifierError, match="install kvproxy again"):
        load_verifier()


def test_a_cross_encoder_of_the_user_replaces_it(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "own")
    load_tokenizer(packaged_model(), 64).save(str(tmp_path / "own" / "tokenizer.json"))
    (tmp_path / "own" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    own = load_verifier(str(tmp_path / "own"))
    scores = own.score(SAME, np.ones(len(SAME)))
    assert (scores.dtype, scores.shape) == (np.float32, (len(SAME),))
    assert ((scores > 0) & (scores < 1)).all()
    assert own.score([], np.ones(0)).shape == (0,)


def test_questions_in_other_languages_are_refused(verifier: BuiltInVerifier) -> None:
    policy = CheckedPolicy(verifier, 0.0, 0.0, guards=())
    for question in ("Jak zmienić hasło?", "Come posso cambiare la password?", "Hur återställer jag mitt lösenord?"):
        (decision,) = policy.decide(question, [Neighbour(question, 1.0)]).decisions
        assert (decision.verdict, decision.guard) == ("vetoed", "language")
    assert verifier.can_read("Why has my direct debit been declined?")
