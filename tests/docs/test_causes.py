"""docs/http.md lists every cause for which a response is not stored."""

from pathlib import Path

from kvproxy.apis.not_stored import Cause

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"


def test_every_cause_is_documented() -> None:
    lines = PAGE.read_text().splitlines()
    assert [cause.value for cause in Cause if f"| `{cause.value}` | {cause.meaning} |" not in lines] == []
