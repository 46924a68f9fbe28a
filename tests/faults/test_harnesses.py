"""Short runs of the harnesses, and checks that they detect losses."""

import random

import pytest

from tests.faults import fleet, kills, outage, smuggling
from tests.faults.harness import passed
from tests.faults.header_names import request_headers
from tests.faults.mutants import _FRAMING, Sent, mutant
from tests.faults.victims import VICTIMS, Careless, Short, Victim


@pytest.mark.parametrize("victim", VICTIMS, ids=lambda victim: victim.name)
def test_kill_9_loses_no_acknowledged_write(victim: Victim) -> None:
    findings = kills.run(4, 1, lambda: None, [victim])
    assert passed(findings)
    assert sum(finding.rounds for finding in findings) == 4


def test_proxies_and_their_postgres_may_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PROXIES": 2,
        "WORKERS": 2,
        "ACKNOWLEDGED": 5,
        "LOAD_SECONDS": 0.5,
        "OUTAGE_SECONDS": 1.0,
        # A machine that is busy with other tests is slow, too.
        "DELIVERY_SECONDS": 300.0,
        "DRAINED_SECONDS": 300.0,
        "RECOVERY_SECONDS": 300.0,
    }.items():
        monkeypatch.setattr(fleet, f"_{name}", value)
    monkeypatch.setattr(fleet, "_PAUSE_SECONDS", 0.2)
    findings = fleet.run(2, 1, lambda: None)
    assert passed(findings)
    assert all(finding.counts["acknowledged"] for finding in findings)


@pytest.mark.parametrize(("code", "begins"), [(0, False), (3, True)])
def test_the_harness_detects_an_exit_before_the_kill(code: int, begins: bool) -> None:
    (finding,) = kills.run(1, 0, lambda: None, [Short(code, begins=begins)])
    assert finding.failures == [f"seed 0, life 0: AssertionError: it ended by itself, with exit code {code}"]


def test_the_harness_detects_a_lost_write() -> None:
    (finding,) = kills.run(3, 0, lambda: None, [Careless()])
    assert not passed([finding])


def test_stored_answers_are_served_while_the_upstream_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "_CLIENTS", 3)
    monkeypatch.setattr(outage, "_PAUSE", 0.1)
    # A busy machine takes longer to store the last answer.
    monkeypatch.setattr(outage, "_WRITE_DELAY", 2.0)
    assert passed(outage.run(1, 0, lambda: None))


@pytest.mark.filterwarnings("ignore")
def test_no_request_causes_a_500_a_traceback_or_a_hang() -> None:
    # Its packages take half a second of every process that collects this file.
    from tests.faults import fuzz

    findings = fuzz.run(24, 2, lambda: None)
    assert passed(findings)
    for finding in findings:
        assert finding.counts["2xx"]
        assert finding.rounds >= 4
    assert sum(finding.counts["4xx"] for finding in findings)


def test_mutants_vary_every_header_that_the_proxy_reads() -> None:
    known = set(
        "origin host cookie accept authorization x-api-key cache-control traceparent x-request-id forwarded via x-forwarded-for"
        " sec-fetch-site sec-fetch-mode sec-fetch-dest service-worker accept-language x-kvproxy-session x-kvproxy-ttl"
        " x-kvproxy-admin-token x-kvproxy-timeout content-length transfer-encoding expect upgrade x-forwarded-user".split()
    )
    assert known - request_headers() == set()
    sent = Sent("POST", "/v1/chat/completions", (), b"{}")
    varied = {name for number in range(6000) for name, _ in mutant(sent, random.Random(number)).headers}
    assert {name for name in known if name not in _FRAMING} - varied == set()


def test_mutants_differ_from_each_other() -> None:
    sent = Sent("POST", "/v1/chat/completions", (), b'{"messages": [{"role": "user", "content": "1"}]}')
    assert len({mutant(sent, random.Random(number)) for number in range(200)}) > 120


@pytest.mark.filterwarnings("ignore")
def test_the_upstream_receives_the_requests_of_the_reference_parse() -> None:
    (finding,) = smuggling.run(200, 0, lambda: None)
    assert passed([finding])
    assert finding.counts["all forwarded"] > 25
    assert finding.counts["closed early"] > 10


def test_the_reference_parses_pipelined_requests() -> None:
    sent = b"POST /v1/r000001/0 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nabGET /v1/r000001/1 HTTP/1.1\r\nHost: a\r\n\r\n"
    assert smuggling.reference(sent) == [(b"POST", b"/v1/r000001/0", b"ab"), (b"GET", b"/v1/r000001/1", b"")]
