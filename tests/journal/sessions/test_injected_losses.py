"""A few injected losses; `python -m tests.journal.sessions.injected_losses` runs a thousand."""

from collections.abc import Callable

import pytest

from tests.journal.sessions.injected_losses import Result, run_engine, run_provider


@pytest.mark.parametrize(("run", "count"), [(run_provider, 10), (run_engine, 3)])
def test_the_ledger_finds_injected_losses(run: Callable[[int, int], Result], count: int) -> None:
    result = run(count, 7)
    assert result.unbalanced == 0
    assert result.wrong == []
    assert result.trials.total() == count
