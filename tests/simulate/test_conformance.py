"""The block cache does what vLLM's did on recorded traces, byte for byte."""

from pathlib import Path

import pytest

from kvproxy.offline.simulate.errors import TraceError
from kvproxy.offline.simulate.replay import replay

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("name", ["edge", "tiny"])
def test_result_lines_equal_vllms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    lines = list(replay(DATA / f"{name}.jsonl"))
    assert "".join(f"{line}\n" for line in lines) == (DATA / f"{name}.expected.jsonl").read_text()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense\n", "line 1: not JSON"),
        ('{"op":"req"}\n', "line 1: a conformance trace begins"),
        (
            '{"op":"meta","v":1,"block_size":4,"num_blocks":9,"vocab":9,"max_model_len":9}\n{"op":"fly","id":"a"}\n',
            "line 2",
        ),
    ],
)
def test_bad_traces_are_named_by_line(tmp_path: Path, text: str, complaint: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text)
    with pytest.raises(TraceError, match=complaint):
        list(replay(trace))
