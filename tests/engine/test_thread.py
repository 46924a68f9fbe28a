"""Work that is done before the engine's thread begins."""

import threading

import pytest

from kvproxy.engine.engine_thread import run_on_temporary_thread


def test_it_gives_what_the_work_gives_and_its_thread_ends() -> None:
    thread = run_on_temporary_thread(threading.current_thread)
    assert thread is not threading.current_thread()
    thread.join(10)
    assert not thread.is_alive()


def test_an_error_of_the_work_is_the_callers() -> None:
    def fail() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        run_on_temporary_thread(fail)
