"""The script that makes the adapter, on sixty pairs."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvproxy.index.minilm.weights import read_tensors
from kvproxy.index.training.train import main
from kvproxy.index.verifier.built_in import ADAPTER, BuiltInVerifier
from kvproxy.index.verifier.scaling import PlattScaling
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


def test_a_small_training_goes_on_from_an_adapter_and_writes_one_that_scores(
    labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.safetensors"
    small = ["--changed", "8", "--filled", "4", "--implied", "4", "--batch", "8", "--passes", "1"]
    files = ["--start", str(ADAPTER), "--pairs", str(labelled), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["train", *small, *files])
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    main()
    trained, notes = read_tensors(out)
    assert int(notes["pairs_seen"]) >= 48
    before = read_tensors(ADAPTER)[0]
    assert all(np.abs(value - before[name]).max() > 0 for name, value in trained.items() if name.endswith(".high"))
    verifier = BuiltInVerifier(trained, PlattScaling(1, 0), integers=False)
    assert np.isfinite(verifier.logits([("What is tea?", "Who sells tea?")])).all()
