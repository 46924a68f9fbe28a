"""A request that asks for a random sample gets a fresh one, unless it accepts the stored one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.plain_upstream import run_plain_upstream
from tests.servers import run_front

SAMPLE = {"temperature": 0.7}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    rule = {"name": "replays", "model": "replayed", "sampled_requests": "replay"}
    with run_plain_upstream() as upstream:
        data: Path = tmp_path_factory.mktemp("sampled")
        with run_front(data, upstream, rules=[rule]) as (found, _):
            yield found


def status(url: str, question: str, control: str = "", model: str = "m", **fields: Any) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": question}], **fields}
    headers = {"cache-control": "confirm" + (f", {control}" if control else "")}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    return answer.headers["cache-status"]


@pytest.mark.parametrize(
    ("fields", "hit"),
    [
        ({}, True),
        ({"temperature": 0}, True),
        ({"temperature": 0.7}, False),
        ({"temperature": 1}, False),
        ({"temperature": 0.7, "seed": 3}, True),
        ({"temperature": 0.7, "model": "replayed"}, True),
    ],
)
def test_only_an_explicit_temperature_asks_for_a_sample(url: str, fields: dict[str, Any], hit: bool) -> None:
    question = f"Which of {sorted(fields.items())}?"
    assert "; stored" in status(url, question, **fields)
    assert ("; hit" in status(url, question, **fields)) == hit


def test_a_request_may_accept_the_stored_sample(url: str) -> None:
    assert "fwd=uri-miss" in status(url, "Accept?", **SAMPLE)
    assert "; hit" in status(url, "Accept?", "max-age=60", **SAMPLE)
    assert "; hit" in status(url, "Accept?", "only-if-cached", **SAMPLE)
    assert "fwd=request" in status(url, "Accept?", "no-cache, max-age=60", **SAMPLE)
