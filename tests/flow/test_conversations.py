"""A proxy answers a conversation with reworded questions from the cache, and no other conversation."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flow.proxies import Model, checked, proxy

OPENING, REWORDED, OPPOSITE = (
    "how do i enable the alarm",
    "how do i enable the alarm please",
    "how do i disable the alarm",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Model]]:
    with proxy(tmp_path_factory.mktemp("served"), checked(0.7), text="Answer {}.") as (url, services, model):
        for question, answer in ((OPENING, "Press A."), ("continue", "Then B.")):
            model.answers[question] = answer
        for turns in ((OPENING,), (OPENING, "Press A.", "continue")):
            httpx.post(f"{url}/v1/chat/completions", json=body(*turns)).raise_for_status()
        services.cache.store.flush()
        model.answers["continue"] = "Then something else."
        model.asked.clear()
        yield url, model


def body(*turns: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(turns)]
    return {"model": "m", "messages": messages, **fields}


def test_a_reworded_conversation_is_served_also_as_a_stream(served: tuple[str, Model]) -> None:
    url, model = served
    opening = httpx.post(f"{url}/v1/chat/completions", json=body(REWORDED))
    assert 'detail="semantic' in opening.headers["cache-status"]
    asked = body(REWORDED, opening.json()["choices"][0]["message"]["content"], "continue")
    hit = httpx.post(f"{url}/v1/chat/completions", json=asked)
    assert 'detail="semantic' in hit.headers["cache-status"]
    assert hit.json()["choices"][0]["message"]["content"] == "Then B."
    stream = httpx.post(f"{url}/v1/chat/completions", json=asked | {"stream": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    *events, end = [line.removeprefix("data: ") for line in stream.text.split("\n\n") if line]
    assert end == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(deltas) == "Then B."
    assert model.asked == []
    explained = httpx.post(f"{url}/admin/explain", json=asked).json()["semantic"]["neighbours"][0]
    assert explained["prompt"] == f"{OPENING} ⏎ Press A. ⏎ continue"
    assert explained["why"] == "one answer fits both, and the earlier questions mean the same"


def test_no_other_conversation_is_served(served: tuple[str, Model]) -> None:
    url, model = served
    for asked, headers in (
        (body(OPPOSITE, "Press A.", "continue"), {}),
        (body(REWORDED, "Press C.", "continue"), {}),
        (body("continue"), {}),
        (body(REWORDED, "Press A.", "what now", "Wait.", "continue"), {}),
        (body(REWORDED, "Press A.", "continue"), {"authorization": "Bearer other"}),
        (body(REWORDED, "Press A.", "continue"), {"x-kvproxy-namespace": "other"}),
    ):
        headers |= {"cache-control": "no-store"}
        missed = httpx.post(f"{url}/v1/chat/completions", json=asked, headers=headers)
        assert missed.json()["choices"][0]["message"]["content"] == "Then something else."
        assert model.asked.pop() == "continue"


def test_the_setting_requires_equal_conversations(tmp_path: Path) -> None:
    with proxy(tmp_path, checked(0.7), text="Answer {}.", conversations=False) as (url, _, model):
        for opening in (OPENING, REWORDED):
            httpx.post(f"{url}/v1/chat/completions", json=body(opening, "Press A.", "continue"))
        assert len(model.asked) == 2


def test_a_passage_in_an_earlier_turn_decides_the_answer(tmp_path: Path) -> None:
    question = "Does the Team plan include phone support?"
    passages = ("Passage: The Team plan includes phone support.", "Passage: The Team plan excludes phone support.")
    with proxy(tmp_path, checked(0.7), text="Answer {}.") as (url, _, model):
        for passage in passages:
            httpx.post(f"{url}/v1/chat/completions", json=body(passage, "Understood.", question))
        assert len(model.asked) == 2
