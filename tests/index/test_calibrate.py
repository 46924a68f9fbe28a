"""Calibration counts what it says it counts."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.calibrate import Pair, calibrate, read_pairs, wilson
from index.embedder import HashEmbedder
from index.errors import ImportFailed

WORDS = st.lists(st.sampled_from("how what block cache not 2 3 open close Paris Rome".split()), min_size=1, max_size=5)
TEXT = WORDS.map(" ".join)
PAIRS = st.lists(st.builds(Pair, TEXT, TEXT, st.booleans()), min_size=1, max_size=30)


@settings(deadline=None, max_examples=40)
@given(PAIRS)
def test_curves_agree_with_counting(pairs: list[Pair]) -> None:
    embedder = HashEmbedder()
    result = calibrate(pairs, embedder, default_level=0.951)
    cosine = [float(embedder.embed([pair.a])[0] @ embedder.embed([pair.b])[0]) for pair in pairs]
    for point, guarded in zip(result.curves["threshold"], result.curves["guards"], strict=True):
        if any(abs(score - point.level) < 1e-4 for score in cosine):
            continue  # Batches of another size round differently.
        served = [pair for pair, score in zip(pairs, cosine, strict=True) if score >= point.level]
        right = sum(pair.same for pair in served)
        assert point.served == len(served)
        assert point.hit_rate == pytest.approx(right / result.same if result.same else 0.0)
        assert point.wrong_share == (pytest.approx(1 - right / len(served)) if served else None)
        assert guarded.served <= point.served
    assert 0.951 in [point.level for point in result.curves["threshold"]]


def test_recommends_the_lowest_level_that_is_known_to_be_good() -> None:
    class Angles(HashEmbedder):
        """A text is an angle in degrees."""

        def embed(self, texts):  # type: ignore[no-untyped-def]
            angles = np.radians([float(text) for text in texts])
            return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    # cos 10 = 0.985, cos 20 = 0.940, cos 35 = 0.819: right, right, wrong.
    pairs = [Pair("0", "10", True)] * 200 + [Pair("0", "20", True)] * 200 + [Pair("0", "35", False)] * 200
    result = calibrate(pairs, Angles(), default_level=0.95, target_error=0.05, guards=())
    assert result.recommended == {"threshold": 0.82, "guards": 0.82}
    few = calibrate(pairs[:3], Angles(), default_level=0.95, target_error=0.05, guards=())
    assert few.recommended["threshold"] is None


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
def test_reads_pairs_and_names_a_bad_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write = gzip.compress if name.endswith(".gz") else bytes
    path.write_bytes(write(b'{"a": "x", "b": "y", "same": 1, "source": "s"}\n\n{"a": "x", "b": "z", "same": false}\n'))
    assert list(read_pairs(path)) == [Pair("x", "y", True), Pair("x", "z", False)]
    for bad in (b"{", b"[]", b'{"a": "x", "b": 1, "same": 1}', b'{"a": "x", "b": "y", "same": 2}', b"\xff\n"):
        path.write_bytes(write(b'{"a": "x", "b": "y", "same": 1}\n' + bad))
        with pytest.raises(ImportFailed, match=r"line [12]"):
            list(read_pairs(path))


def test_wilson_interval() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(5, 100) == pytest.approx((0.0215, 0.1118), abs=1e-3)  # The textbook's value.
    assert wilson(0, 50)[0] == 0.0
