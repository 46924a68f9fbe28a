"""What `tests.faults.outage` runs for a minute, for two seconds."""

from tests.faults import outage
from tests.faults.harness import passed


def test_an_upstream_that_is_away_is_stood_in_for() -> None:
    assert passed(outage.run(2, 0, lambda: None))
