"""Threads of the models yield to the event loop."""

import os
import sys

import pytest

from kvproxy.index.models.model_threads import model_pool


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority per thread")
def test_only_the_threads_of_the_pool_have_a_lower_priority() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)

    def nested_priorities() -> list[int]:
        with model_pool("inner", 1) as inner:
            return [os.getpriority(os.PRIO_PROCESS, 0), inner.submit(os.getpriority, os.PRIO_PROCESS, 0).result()]

    with model_pool("outer", 1) as outer:
        # A new thread inherits the priority of the thread that starts it.
        assert outer.submit(nested_priorities).result() == [min(before + 4, 19)] * 2
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
