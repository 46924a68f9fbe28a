"""Every benchmark backs a figure of a page, and every benchmark that a page names exists."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BENCHMARKS = {
    path.stem for path in Path(__file__).parent.glob("*.py") if 'if __name__ == "__main__":' in path.read_text()
} - {Path(__file__).stem}


def test_pages_name_every_benchmark() -> None:
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    assert set(re.findall(r"tests\.benchmarks\.(\w+)", pages)) == BENCHMARKS


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_benchmarks_import(name: str) -> None:
    """Nothing else in the tests imports them, so a rename would break them unnoticed."""
    assert callable(importlib.import_module(f"tests.benchmarks.{name}").main)
