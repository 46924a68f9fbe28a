"""Some hundred mutated streams of requests, against the reference parse."""

import pytest

from tests.faults import smuggling
from tests.faults.harness import passed


@pytest.mark.filterwarnings("ignore")
def test_the_upstream_sees_the_requests_of_the_reference_parse() -> None:
    (finding,) = smuggling.run(400, 0, lambda: None)
    assert passed([finding])
    assert finding.counts["all forwarded"] > 50
    assert finding.counts["closed early"] > 20


def test_the_reference_reads_pipelined_requests() -> None:
    sent = b"POST /v1/r000001/0 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nabGET /v1/r000001/1 HTTP/1.1\r\nHost: a\r\n\r\n"
    assert smuggling.reference(sent) == [(b"POST", b"/v1/r000001/0", b"ab"), (b"GET", b"/v1/r000001/1", b"")]
