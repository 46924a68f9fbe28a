"""Whatever stands in a trace, it is replayed or refused with one error that names the line."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.offline.simulate.errors import TraceError
from kvproxy.offline.simulate.replay import replay
from kvproxy.offline.simulate.workload import read_arrivals, read_chains, trace_kind

META = {"op": "meta", "v": 1, "block_size": 4, "num_blocks": 9, "vocab": 9, "max_model_len": 9}
REQUEST = {"op": "req", "id": "a", "segs": [[1, 6]], "out": [2, 2]}

small = st.one_of(st.none(), st.booleans(), st.integers(-2, 12), st.just(2**70), st.floats(), st.text(max_size=3))
values = st.recursive(
    small, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
)
changes = st.dictionaries(
    st.sampled_from(["op", "v", "block_size", "num_blocks", "vocab", "id", "segs", "out", "salt", "lora", "mm", "n"]),
    values,
    max_size=2,
)
steps = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["start", "extend", "decode", "finish", "abort", "reset"]),
        "id": st.just("a"),
        "n": st.integers(0, 7),
    }
)
mooncake = st.fixed_dictionaries(
    {
        "timestamp": st.integers(0, 9) | values,
        "input_length": st.integers(0, 2000) | values,
        "hash_ids": st.lists(st.integers(0, 9)) | values,
    }
)
logs = st.fixed_dictionaries(
    {"tokens": st.lists(st.integers(0, 9)) | values}, optional={"timestamp": st.integers(0, 9) | values}
)


def written(lines: list[Any]) -> Path:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return Path(file.name)


@given(meta=changes, request=changes, more=st.lists(st.tuples(steps, changes), max_size=8))
@settings(max_examples=150, deadline=None)
def test_any_list_of_operations_is_replayed_or_refused(
    meta: dict[str, Any], request: dict[str, Any], more: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    trace = written([META | meta, REQUEST | request, *(step | change for step, change in more)])
    try:
        assert json.loads(list(replay(trace))[-1])["op"] == "end"
    except TraceError as error:
        told = str(error)
        assert "line" in told or "declared" in told
    finally:
        trace.unlink()


@given(
    lines=st.lists(mooncake, min_size=1, max_size=4)
    | st.lists(logs, min_size=1, max_size=4)
    | st.lists(values, max_size=3)
)
@settings(max_examples=150, deadline=None)
def test_any_log_is_read_or_refused(lines: list[Any]) -> None:
    trace = written(lines)
    try:
        if trace_kind(trace) != "conformance":
            requests, _ = read_chains(trace, 4)
            assert len(requests) == len(lines)
            assert all(0 <= request.reusable <= len(request.blocks) for request in requests)
            read_arrivals(trace, 4)
    except TraceError as error:
        told = str(error)
        assert "line" in told
    finally:
        trace.unlink()


def test_an_answer_longer_than_declared_is_told() -> None:
    trace = written([META, REQUEST, {"op": "start", "id": "a", "n": 6}, {"op": "decode", "id": "a", "n": 3}])
    with pytest.raises(TraceError, match="declared output of 2 tokens"):
        list(replay(trace))
