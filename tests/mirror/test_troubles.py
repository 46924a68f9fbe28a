"""One line of a stream's troubles a minute, however many there are."""

import pytest

from kvproxy.mirror.subscriber import QUIET, Troubles


def test_a_line_a_minute_tells_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0]
    troubles = Troubles("tcp://engine:1", clock=lambda: now[0])
    assert troubles.last is None
    for number in range(3):
        troubles.tell(f"trouble {number}")
    now[0] += QUIET - 0.5
    troubles.tell("one more")
    assert troubles.last == "one more"
    assert [record.getMessage() for record in caplog.records] == ["KV events of tcp://engine:1: trouble 0"]
    for seconds in (0.5, QUIET):
        now[0] += seconds
        troubles.tell("again", ValueError("x"))
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "KV events of tcp://engine:1: again (3 more since the last line)",
        "KV events of tcp://engine:1: again",
    ]
    assert caplog.records[1].exc_info is not None
