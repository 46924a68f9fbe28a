"""Requests that no later request continues get no breakpoint at their end."""

from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.agent_requests import is_headless, is_single_request
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.flow.conversation_digests import conversation_digests
from kvproxy.flow.prepare.continuations import Continuations
from kvproxy.providers.cache_rules import rule_of_marks

RULE = rule_of_marks("claude-sonnet-5")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def request(*texts: str, system: Any = "You are an agent.", **headers: str) -> ApiRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    body: Any = {"model": "claude-sonnet-5", "max_tokens": 9, "system": system, "messages": messages}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ApiRequest(APIS["messages"], body, dumps(body), named, "public", "1")


def expects(found: Continuations, asked: ApiRequest) -> bool:
    return found.expects_another(asked, list(conversation_digests(asked)), RULE)


def test_a_kind_that_is_never_continued_is_learned_and_unlearned() -> None:
    clock = Clock()
    found = Continuations(clock)
    answers = []
    for number in range(20):
        answers.append(expects(found, request(f"question {number}")))
        clock.now += 400
    assert answers[0]
    assert not answers[-1]
    # Another kind is not affected.
    assert expects(found, request("one", system="You are another agent."))
    for number in range(20):
        expects(found, request(f"task {number}"))
        clock.now += 10
        expects(found, request(f"task {number}", "step", "result"))
        clock.now += 400
    assert expects(found, request("task"))


def test_a_continuation_after_the_lifetime_does_not_count() -> None:
    clock = Clock()
    found = Continuations(clock)
    for number in range(20):
        expects(found, request(f"task {number}"))
        clock.now += 400
        expects(found, request(f"task {number}", "step", "result"))
        clock.now += 400
    assert not expects(found, request("task"))


@pytest.mark.parametrize(
    "asked",
    [
        request("Hello", "Hi", "Your task is to create a detailed summary of the conversation so far, ..."),
        request("Hello", system="You are a title generator. You output ONLY a thread title."),
        request(
            "Hello",
            system=[
                {"type": "text", "text": "x-anthropic-billing-header: cc_entrypoint=cli;"},
                {"type": "text", "text": "Summarize this coding conversation in under 50 characters."},
            ],
        ),
    ],
)
def test_summaries_and_titles_are_known(asked: ApiRequest) -> None:
    assert is_single_request(asked)
    assert not expects(Continuations(Clock()), asked)


def test_a_summary_of_a_conversation_that_went_on_is_not_marked() -> None:
    """It shares the system prompt with the continued requests."""
    clock = Clock()
    found, said = Continuations(clock), ["Hello"]
    for number in range(9):
        assert expects(found, request(*said))
        said += [f"answer {number}", f"step {number}"]
        clock.now += 9
    assert not expects(found, request(*said, "answer", "Your task is to create a detailed summary of this."))
    assert expects(found, request(*said, "answer", "step"))


def test_runs_without_a_person_are_known_by_the_client() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint={};"
    assert is_headless(request("a", system=[{"type": "text", "text": billing.format("sdk-cli")}]))
    assert not is_headless(request("a", system=[{"type": "text", "text": billing.format("cli")}]))
    assert is_headless(request("a", user_agent="claude-cli/2.1.197 (external, sdk-cli)"))
    assert not is_headless(request("a", user_agent="claude-cli/2.1.197 (external, cli)"))
    assert is_headless(request("a", originator="codex_exec"))
