"""Work that is done before the engine's thread begins."""

import threading

import pytest

from kvproxy.engine.thread import on_a_thread_that_ends


def test_it_gives_what_the_work_gives_and_its_thread_ends() -> None:
    thread = on_a_thread_that_ends(threading.current_thread)
    assert thread is not threading.current_thread()
    thread.join(10)
    assert not thread.is_alive()


def test_an_error_of_the_work_is_the_callers() -> None:
    def fail() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        on_a_thread_that_ends(fail)
