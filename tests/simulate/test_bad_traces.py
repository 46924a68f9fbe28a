"""Any trace is read, or refused with an error that names the line."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.offline.simulate.workload import TraceError, read_arrivals, read_chains

small = st.one_of(st.none(), st.booleans(), st.integers(-2, 12), st.just(2**70), st.floats(), st.text(max_size=3))
values = st.recursive(
    small, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
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


@given(
    lines=st.lists(mooncake, min_size=1, max_size=4)
    | st.lists(logs, min_size=1, max_size=4)
    | st.lists(values, max_size=3)
)
@settings(max_examples=50, deadline=None)
def test_any_log_is_read_or_refused(lines: list[Any]) -> None:
    trace = written(lines)
    try:
        requests, _ = read_chains(trace, 4)
        assert len(requests) == len(lines)
        assert all(0 <= request.reusable <= len(request.blocks) for request in requests)
        read_arrivals(trace, 4)
    except TraceError as error:
        told = str(error)
        assert "line" in told
    finally:
        trace.unlink()
