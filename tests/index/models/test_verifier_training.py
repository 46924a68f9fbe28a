"""Training the adapter of the verifier: its pairs, its calibration, and the script with sixty pairs."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.evaluation.labelled_pairs import LabelledPair
from kvproxy.index.models.minilm.onnx_files import OnnxFiles
from kvproxy.index.models.minilm.weights import read_tensors
from kvproxy.index.models.verifier.built_in import ADAPTER, BuiltInVerifier, PlattScaling
from training.verifier import train
from training.verifier.evaluate import fit_scaling, reliability_curve
from training.verifier.pair_clusters import hold_out, implied_pairs
from training.verifier.rewording import reword

TOPICS = ("rust", "tea", "a lamp", "the moon", "chess", "soup")


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.jsonl"
    rows = []
    for number in range(16):
        topic = f"{TOPICS[number % len(TOPICS)]} {number}"
        rows.append({"a": f"What is {topic}?", "b": f"Can you tell me what {topic} is?", "same": 1})
        rows.append({"a": f"What is {topic}?", "b": f"Who sells {topic}?", "same": 0})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_small_training_writes_an_adapter_that_scores(
    labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.safetensors"
    small = ["--changed", "8", "--filled", "4", "--implied", "4", "--batch", "8", "--passes", "1"]
    files = ["--start", str(ADAPTER), "--pairs", str(labelled), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["train", *small, *files])
    train.main()
    trained, notes = read_tensors(out)
    assert int(notes["pairs_seen"]) >= 48
    before = read_tensors(ADAPTER)[0]
    assert all(np.abs(value - before[name]).max() > 0 for name, value in trained.items() if name.endswith(".high"))
    verifier = BuiltInVerifier(trained, PlattScaling(1, 0), int8=False, files=OnnxFiles([]))
    assert np.isfinite(verifier.logits([("What is tea?", "Who sells tea?")])).all()


EDGES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=200)


@given(EDGES)
def test_no_question_is_in_two_parts(edges: list[tuple[int, int]]) -> None:
    pairs = [LabelledPair(str(one), str(other), True) for one, other in edges]
    split = hold_out(pairs)
    parts = split.calibrate, split.evaluate, split.train
    texts = [{text for pair in part for text in (pair.a, pair.b)} for part in parts]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]
    assert sorted(repr(pair) for part in parts for pair in part) == sorted(map(repr, pairs))


def test_the_split_is_deterministic_and_has_the_documented_size() -> None:
    rng = random.Random(1)
    pairs = [LabelledPair(f"q{rng.randrange(5000)}", f"q{rng.randrange(5000)}", bool(n % 2)) for n in range(2000)]
    parts = hold_out(pairs)
    assert parts == hold_out(pairs)
    assert len(parts.calibrate) == pytest.approx(100, abs=20)
    assert len(parts.evaluate) == pytest.approx(140, abs=20)


def test_only_whole_words_are_replaced_by_synonyms() -> None:
    assert not [seed for seed in range(50) if "sick" in reword("Who is Bill?", random.Random(seed))]


def test_implied_pairs_follow_from_labelled_ones() -> None:
    labelled = [
        LabelledPair("a", "b", True),
        LabelledPair("b", "c", True),
        LabelledPair("c", "x", False),
        LabelledPair("x", "y", True),
    ]
    found = {(*sorted((pair.a, pair.b)), pair.same) for pair in implied_pairs(labelled)}
    assert found == {("a", "c", True), ("a", "x", False), ("a", "y", False), ("b", "x", False)} | {
        ("b", "y", False),
        ("c", "y", False),
    }
    assert implied_pairs(labelled, max_cluster=2) == []


def test_a_fit_recovers_the_scaling_and_the_weight_of_the_cosine() -> None:
    rng = np.random.default_rng(1)
    logits, cosines = rng.normal(0, 3, 20_000), rng.uniform(0.5, 1, 20_000)
    same = rng.random(20_000) < PlattScaling(0.6, -3.0, 4.0).probabilities(logits, cosines)
    found = fit_scaling(logits, same, cosines)
    assert abs(found.slope - 0.6) < 0.03
    assert abs(found.cosine - 4.0) < 0.4
    for part in reliability_curve(found.probabilities(logits, cosines), same):
        assert abs(part.predicted - part.observed) < 0.05
    assert fit_scaling(logits, same).cosine == 0
