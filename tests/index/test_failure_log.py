"""The log of repeated failures: each outage, but not each failure of a damaged page."""

import pytest

from kvproxy.index import failure_log
from kvproxy.index.failure_log import FailureLog


def test_each_outage_and_recovery_is_logged_unless_they_alternate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr(failure_log.time, "monotonic", lambda: now)
    log = FailureLog()
    for _ in range(2):
        for _ in range(3):
            log.log_failure("fails")
        log.log_recovery("works")
        now += 1
    assert caplog.messages == ["fails", "works"] * 2
    for _ in range(50):
        log.log_failure("fails")
        log.log_recovery("works")
    assert caplog.messages == ["fails", "works"] * 5
    # An outage after them is logged as soon as a minute has passed.
    log.log_failure("fails")
    assert len(caplog.messages) == 10
    now += 60
    log.log_failure("fails")
    log.log_recovery("works")
    assert caplog.messages == ["fails", "works"] * 6
