"""The scripts that make the adapter: what teachers say, one training in small, and what it writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from index.embedder import load_embedder
from index.minilm.weights import read_tensors
from index.verifier.built_in import ADAPTER, BuiltInVerifier
from index.verifier.calibration import Calibration
from index.verifier.evaluate import cosines
from index.verifier.pairs import Pair, Parts, hold_out, key, read_pairs, read_taught
from index.verifier.teach import Teacher, near, teach
from index.verifier.train import Plan, target, training_pairs
from tests.ports import free_port

TOPICS = ("rust", "tea", "a lamp", "the moon", "chess", "soup")


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Sixty labelled pairs about thirty things."""
    file = tmp_path / "pairs.jsonl"
    rows = []
    for number in range(30):
        topic = f"{TOPICS[number % len(TOPICS)]} {number}"
        rows.append({"a": f"What is {topic}?", "b": f"Can you tell me what {topic} is?", "same": 1})
        rows.append({"a": f"What is {topic}?", "b": f"Who sells {topic}?", "same": 0})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_what_is_learned_is_between_label_and_teachers() -> None:
    assert target(Pair("a", "b", True), 0.1) == pytest.approx(0.9)
    assert target(Pair("a", "b", False), 0.1) == pytest.approx(0.1)
    assert target(Pair("a", "b", True, chance=0.4), 0.1) == pytest.approx(0.65)
    assert target(Pair("a", "b", True, "taught", 0.7), 0.1) == 0.7


def test_teachers_speak_of_labelled_pairs_and_of_others(labelled: Path, tmp_path: Path) -> None:
    known, taught = hold_out(read_pairs(labelled)).train, tmp_path / "taught.jsonl"
    rows = [{"a": known[0].b, "b": known[0].a, "chance": 0.25}, {"a": "x", "b": "y", "chance": 0.75}]
    taught.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = training_pairs(Plan(labelled, tmp_path / "out", taught=taught))
    assert [pair.chance for pair in pairs if key(pair.a, pair.b) in read_taught(taught)] == [0.25, 0.75]
    assert (pairs[-1].kind, pairs[-1].same, len(pairs)) == ("taught", True, len(known) + 1)


def test_neighbours_are_near_unlabelled_and_named_once() -> None:
    texts = [f"{how} {what}?" for what in TOPICS for how in ("What is", "Tell me what is", "Who invented")]
    pairs = [Pair(one, other, True) for one, other in zip(texts[::3], texts[1::3], strict=True)]
    pairs += [Pair(texts[0], text, False) for text in texts[2::3]]
    embedder = load_embedder()
    found = near(pairs, embedder, 0.6)
    names = [key(pair.a, pair.b) for pair in found]
    assert len(set(names)) == len(names) > 0
    assert not set(names) & {key(pair.a, pair.b) for pair in pairs}
    assert cosines(found, embedder).min() >= 0.6
    assert near(pairs, embedder, 1.01) == []


def test_one_teacher_says_what_its_verifier_says_and_two_say_the_mean(labelled: Path) -> None:
    pairs = read_pairs(labelled)
    embedder = load_embedder()
    parts = Parts(calibrate=pairs[:40], report=[], train=pairs)
    teacher = Teacher(ADAPTER, parts, cosines(parts.calibrate, embedder))
    told = teach(pairs[40:], [teacher], embedder)
    same = np.array([pair.same for pair in pairs[40:]])
    assert told[same].min() > 0.5 > told[~same].max()
    assert teach(pairs[40:], [teacher, teacher], embedder) == pytest.approx(told)


def test_a_training_in_small_goes_on_from_an_adapter_and_writes_one_that_scores(labelled: Path, tmp_path: Path) -> None:
    taught, out = tmp_path / "taught.jsonl", tmp_path / "out.safetensors"
    taught.write_text(json.dumps({"a": "What is soup?", "b": "What is tea?", "chance": 0.1}) + "\n")
    small = ["--changed", "8", "--filled", "4", "--implied", "4", "--batch", "8", "--passes", "1"]
    command = [sys.executable, "-m", "index.verifier.train", *small, "--start", str(ADAPTER), "--pairs", str(labelled)]
    done = subprocess.run(
        [*command, "--taught", str(taught), "--out", str(out)],
        env=os.environ | {"MASTER_PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    trained, notes = read_tensors(out)
    assert int(notes["pairs_seen"]) >= 48
    before = read_tensors(ADAPTER)[0]
    assert all(np.abs(value - before[name]).max() > 0 for name, value in trained.items() if name.endswith(".high"))
    verifier = BuiltInVerifier(trained, Calibration(1, 0), integers=False)
    assert np.isfinite(verifier.logits([("What is tea?", "Who sells tea?")])).all()
