"""Trace contexts, as W3C writes them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.trace_context import Trace


@settings(max_examples=30)
@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True))
def test_any_header_makes_a_trace_of_the_right_form(header: str) -> None:
    trace = Trace.begin(header)
    again = Trace.begin(trace.header)
    assert (again.id, again.parent, again.sampled) == (trace.id, trace.call, trace.sampled)
    if trace.parent is not None:
        assert trace.parent in header
        assert trace.id in header


def test_the_share_of_traces_that_begin_here_is_as_set() -> None:
    assert not any(Trace.begin(None, 0.0).sampled for _ in range(100))
    assert all(Trace.begin(None, 1.0).sampled for _ in range(100))
    assert 300 < sum(Trace.begin(None, 0.5).sampled for _ in range(1000)) < 700
