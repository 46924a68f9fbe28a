"""`explain --request` names the cause of a miss; `python -m tests.journal.injected` injects a thousand."""

import asyncio
from pathlib import Path

import pytest

from tests.journal.injected import INJECT, inject


@pytest.mark.parametrize(("text", "count", "seed"), [("all", 60, 1), ("none", 40, 2)])
def test_every_injected_cause_is_named(tmp_path: Path, text: str, count: int, seed: int) -> None:
    causes, wrong = asyncio.run(inject(tmp_path, count, seed, text))
    assert wrong == []
    assert causes.total() == count
    assert len(causes) > len(INJECT)
