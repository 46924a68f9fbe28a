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


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Model]]:
    with proxy(tmp_path, checked(0.7), text="Answer {}.") as (url, services, model):
        for question, answer in ((OPENING, "Press A."), ("continue", "Then B.")):
            model.answers[question] = answer
        for turns in ((OPENING,), (OPENING, "Press A.", "continue")):
            httpx.post(f"{url}/v1/chat/completions", json=body(*turns)).raise_for_status()
        services.answerer.store.flush()
        model.answers["continue"] = "Then something else."
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
    assert len(model.asked) == 2
    explained = httpx.post(f"{url}/admin/explain", json=asked).json()["semantic"]["neighbours"][0]
    assert explained["prompt"] == f"{OPENING} ⏎ continue"
    assert explained["why"] == "one answer fits both, and the earlier questions mean the same"


@pytest.mark.parametrize(
    ("asked", "headers"),
    [
        (body(OPPOSITE, "Press A.", "continue"), {}),
        (body(REWORDED, "Press C.", "continue"), {}),
        (body("continue"), {}),
        (body(REWORDED, "Press A.", "what now", "Wait.", "continue"), {}),
        (body(REWORDED, "Press A.", "continue"), {"authorization": "Bearer other"}),
        (body(REWORDED, "Press A.", "continue"), {"x-kvproxy-namespace": "other"}),
    ],
)
def test_no_other_conversation_is_served(
    served: tuple[str, Model], asked: dict[str, Any], headers: dict[str, str]
) -> None:
    url, model = served
    missed = httpx.post(f"{url}/v1/chat/completions", json=asked, headers=headers)
    assert missed.json()["choices"][0]["message"]["content"] == "Then something else."
    assert len(model.asked) == 3


def test_the_setting_requires_equal_conversations(tmp_path: Path) -> None:
    with proxy(tmp_path, checked(0.7), text="Answer {}.", conversations=False) as (url, _, model):
        for opening in (OPENING, REWORDED):
            httpx.post(f"{url}/v1/chat/completions", json=body(opening, "Press A.", "continue"))
        assert len(model.asked) == 2
