"""Runs the commands of docs/journal.md against a new proxy.

python -m tests.tour.test_journal    # writes the printed output into the page
"""

import re

import pytest

from kvproxy.journal.reasons import reasons
from kvproxy.journal.schema import COLUMNS
from tests.commands.run import ROOT
from tests.tour.shell import Step, steps, with_output
from tests.tour.test_tour import normal, run_tour

PAGE = ROOT / "docs" / "journal.md"
WIDTH = 100
# What differs from run to run beside ids: when it was, and how long it took.
_VARIABLE = [
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b\d\d:\d\d:\d\d\b"), "<time>"),
    # Below a second it looks like a score, of which only the place is compared. A long one wraps before its unit.
    (re.compile(r"(\b\d[\d,]*(\.\d+)?|<number>)\s?(ms|s|m|h|d)\b"), "<long>"),
    # From a second on, milliseconds have no decimals.
    (re.compile(r"\b\d[\d,]*\.\d+\b|\b\d{1,3}(?:,\d{3})+\b"), "<number>"),
    (re.compile(r"[█▏]+"), ""),
]


def told(text: str) -> list[str]:
    """The lines of a command's output without what differs; those of a histogram aside, whose bars do."""
    text = normal(text)
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    lines = (re.sub(r" +", " ", line).strip() for line in text.splitlines())
    return [line for line in lines if not re.fullmatch(r"<long>( \d+)?", line)]


@pytest.fixture(scope="module")
def tour() -> list[Step]:
    return run_tour(PAGE.read_text(), WIDTH)


def test_the_output_of_the_page_is_current(tour: list[Step]) -> None:
    shown = steps(PAGE.read_text())
    assert len(shown) == len(tour) > 8
    for step, claimed in zip(tour, shown, strict=True):
        assert told(step.output) == told(claimed.output), step.command


def test_the_page_explains_the_miss(tour: list[Step]) -> None:
    said = {step.command: step.output for step in tour}
    assert "'2026-11-16.' became '2026-11-17.'" in said["kvproxy explain --request tuesday"]
    assert "miss-changed" in said["kvproxy log --since 5m"]
    assert "hit-exact" in said["kvproxy log show again"]


def test_the_reference_has_every_reason_and_every_column() -> None:
    page = (ROOT / "docs" / "records.md").read_text()
    for reason, meaning in reasons().items():
        assert (f"`{reason}`" if reason.startswith("veto-") else f"- `{reason}`: {meaning}") in page
    for column in COLUMNS:
        assert f"`{column}`" in page


if __name__ == "__main__":
    PAGE.write_text(with_output(PAGE.read_text(), run_tour(PAGE.read_text(), WIDTH)))
