"""The commands of docs/performance.md exist, and every benchmark backs a figure of a page."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BENCHMARKS = {
    path.stem for path in Path(__file__).parent.glob("*.py") if 'if __name__ == "__main__":' in path.read_text()
} - {Path(__file__).stem}


def test_pages_name_every_benchmark() -> None:
    assert set(re.findall(r"tests\.benchmarks\.(\w+)", (DOCS / "performance.md").read_text())) == BENCHMARKS


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_benchmarks_import(name: str) -> None:
    """Nothing else in the tests imports them, so a rename would break them unnoticed."""
    assert callable(importlib.import_module(f"tests.benchmarks.{name}").main)
