"""The training script of the adapter, with sixty pairs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kvproxy.index.models.minilm.files import GraphFiles
from kvproxy.index.models.minilm.weights import read_tensors
from kvproxy.index.models.verifier.built_in import ADAPTER, BuiltInVerifier, PlattScaling
from tests.ports import free_port
from training.verifier import train

TOPICS = ("rust", "tea", "a lamp", "the moon", "chess", "soup")


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.jsonl"
    rows = []
    for number in range(30):
        topic = f"{TOPICS[number % len(TOPICS)]} {number}"
        rows.append({"a": f"What is {topic}?", "b": f"Can you tell me what {topic} is?", "same": 1})
        rows.append({"a": f"What is {topic}?", "b": f"Who sells {topic}?", "same": 0})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_small_training_writes_an_adapter_that_scores(
    labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.safetensors"
    # A worker in a process of its own would take seconds to import torch.
    monkeypatch.setattr(train, "spawn", lambda work, arguments, nprocs: [work(n, *arguments) for n in range(nprocs)])
    small = ["--workers", "1", "--changed", "8", "--filled", "4", "--implied", "4", "--batch", "8", "--passes", "1"]
    files = ["--start", str(ADAPTER), "--pairs", str(labelled), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["train", *small, *files])
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    threads = torch.get_num_threads()
    train.main()
    torch.set_num_threads(threads)
    trained, notes = read_tensors(out)
    assert int(notes["pairs_seen"]) >= 48
    before = read_tensors(ADAPTER)[0]
    assert all(np.abs(value - before[name]).max() > 0 for name, value in trained.items() if name.endswith(".high"))
    verifier = BuiltInVerifier(trained, PlattScaling(1, 0), integers=False, files=GraphFiles([]))
    assert np.isfinite(verifier.logits([("What is tea?", "Who sells tea?")])).all()
