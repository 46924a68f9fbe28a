"""Fields that only the embedded engine takes: the prompt echoed with its log-probabilities, and priorities."""

from typing import Any

import httpx
import pytest

from kvproxy.proxy.services import Services

PROMPT = "What is a block? A block is a run of tokens. What is a block?"


def complete(demo: tuple[str, Services], **fields: Any) -> httpx.Response:
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 3, "temperature": 0} | fields
    return httpx.post(f"{demo[0]}/v1/completions", json=body, headers={"cache-control": "no-cache"}, timeout=60)


@pytest.mark.parametrize("n", [1, 2])
def test_an_echo_begins_with_the_prompt_and_its_log_probabilities(demo: tuple[str, Services], n: int) -> None:
    plain = complete(demo, logprobs=1).json()["choices"][0]
    answer = complete(demo, echo=True, logprobs=1, n=n).json()
    assert answer["usage"]["completion_tokens"] == 3 * n
    for choice in answer["choices"]:
        assert choice["text"] == PROMPT + plain["text"]
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {answer["usage"]["prompt_tokens"] + 3}
        assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
        assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
        assert logprobs["token_logprobs"][-3:] == pytest.approx(plain["logprobs"]["token_logprobs"], abs=1e-3)
        assert logprobs["text_offset"] == sorted(logprobs["text_offset"])


def test_an_echoed_prompt_scores_what_generating_it_scored(demo: tuple[str, Services]) -> None:
    """The log-probability of a token is the same whether it is generated or given."""
    generated = complete(demo, max_tokens=6, logprobs=0, ignore_eos=True).json()["choices"][0]
    given = complete(demo, prompt=PROMPT + generated["text"], echo=True, logprobs=0).json()["choices"][0]
    tokens = generated["logprobs"]["tokens"]
    at = next(
        start
        for start in range(len(given["logprobs"]["tokens"]))
        if given["logprobs"]["tokens"][start : start + len(tokens)] == tokens
        and given["logprobs"]["text_offset"][start] >= len(PROMPT) - 1
    )
    found = given["logprobs"]["token_logprobs"][at : at + len(tokens)]
    assert found == pytest.approx(generated["logprobs"]["token_logprobs"], abs=1e-3)


def test_an_echo_without_log_probabilities_still_uses_the_cache(demo: tuple[str, Services]) -> None:
    long = PROMPT * 4
    complete(demo, prompt=long)
    answer = complete(demo, prompt=long, echo=True)
    assert answer.json()["choices"][0]["text"].startswith(long)
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_priorities_are_whole_numbers(demo: tuple[str, Services]) -> None:
    assert complete(demo, priority=-3).status_code == 200
    refused = complete(demo, priority="high")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "priority"
