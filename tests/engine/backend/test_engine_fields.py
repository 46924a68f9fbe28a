"""Fields of the embedded engine: echo, log-probabilities, priorities, and sampling defaults."""

from itertools import accumulate
from typing import Any

import httpx
import pytest

from kvproxy.http.services import Services

PROMPT = "What is a block? A block is a run of tokens. What is a block?"


def complete(demo: tuple[str, Services], **fields: Any) -> httpx.Response:
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 3, "temperature": 0} | fields
    return httpx.post(f"{demo[0]}/v1/completions", json=body, headers={"cache-control": "no-cache"}, timeout=300)


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
        starts = accumulate((len(token) for token in logprobs["tokens"][:-1]), initial=0)
        assert logprobs["text_offset"] == list(starts)
    # An echo without log-probabilities uses cached blocks.
    answer = complete(demo, echo=True).json()
    assert answer["choices"][0]["text"].startswith(PROMPT)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_prompt_is_scored_without_generated_tokens(demo: tuple[str, Services]) -> None:
    scored = complete(demo, echo=True, logprobs=2, max_tokens=0, n=2).json()
    answered = complete(demo, echo=True, logprobs=2, max_tokens=3).json()["choices"][0]["logprobs"]
    assert scored["usage"]["completion_tokens"] == 0
    count = scored["usage"]["prompt_tokens"]
    for choice in scored["choices"]:
        assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(answered["token_logprobs"][1:count], abs=1e-4)
        assert choice["logprobs"]["tokens"] == answered["tokens"][:count]
        assert {len(top) for top in choice["logprobs"]["top_logprobs"][1:]} == {2}
    plain = complete(demo, max_tokens=0).json()
    assert (plain["choices"][0]["text"], plain["choices"][0].get("logprobs")) == ("", None)
    assert plain["choices"][0]["finish_reason"] == "length"
    one = complete(demo, prompt=[7], echo=True, logprobs=1, max_tokens=0).json()["choices"][0]["logprobs"]
    assert one["token_logprobs"] == one["top_logprobs"] == [None]


def chat(demo: tuple[str, Services], question: str, **fields: Any) -> httpx.Response:
    body = {"model": "demo", "messages": [{"role": "user", "content": question}], "max_tokens": 4, "temperature": 0}
    return httpx.post(f"{demo[0]}/v1/chat/completions", json=body | fields, timeout=300)


@pytest.mark.parametrize("count", [0, 3])
def test_prompt_log_probabilities_have_vllms_format(demo: tuple[str, Services], count: int) -> None:
    answer = complete(demo, prompt_logprobs=count, echo=True, logprobs=1, n=2).json()
    echoed = answer["choices"][0]["logprobs"]
    for choice in answer["choices"]:
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        assert len(rest) == answer["usage"]["prompt_tokens"] - 1
        assert {len(top) for top in echoed["top_logprobs"][1:]} == {1}
        for at, scores in enumerate(rest, 1):
            # The token itself comes first, then the most likely tokens from rank 1.
            chosen, *others = scores.values()
            assert (chosen["logprob"], chosen["decoded_token"]) == (echoed["token_logprobs"][at], echoed["tokens"][at])
            ranks = sorted(score["rank"] for score in scores.values())
            assert ranks == sorted({*range(1, count + 1), chosen["rank"]})
            assert all((other["rank"] < chosen["rank"]) == (other["logprob"] > chosen["logprob"]) for other in others)


def test_prompt_log_probabilities_of_a_chat(demo: tuple[str, Services]) -> None:
    answer = chat(demo, "What is a block, and what is it for?", prompt_logprobs=1).json()
    scores = answer["prompt_logprobs"]
    assert len(scores) == answer["usage"]["prompt_tokens"]
    assert (scores[0], set(next(iter(scores[1].values())))) == (None, {"logprob", "rank", "decoded_token"})


def test_the_demo_model_recommends_greedy_sampling(demo: tuple[str, Services]) -> None:
    """At a temperature of 1, one response in twenty differs."""
    answers = {
        choice["message"]["content"]
        for choice in chat(demo, "What is a block?", n=64, temperature=None, max_tokens=None).json()["choices"]
    }
    assert len(answers) == 1
