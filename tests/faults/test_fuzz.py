"""A few hundred requests made from our own OpenAPI document, over every route."""

import random

import pytest

from tests.faults import fuzz
from tests.faults.harness import passed
from tests.faults.mutants import Sent, mutant


@pytest.mark.filterwarnings("ignore")
def test_no_request_brings_a_500_a_traceback_or_a_hang() -> None:
    findings = fuzz.run(300, 0, lambda: None)
    assert passed(findings)
    for finding in findings:
        assert finding.counts["2xx"]
        assert finding.counts["4xx"]
        assert finding.rounds >= 70


def test_mutants_differ_from_each_other() -> None:
    sent = Sent("POST", "/v1/chat/completions", (), b'{"messages": [{"role": "user", "content": "1"}]}')
    made = {mutant(sent, random.Random(number)) for number in range(200)}
    assert len(made) > 120
