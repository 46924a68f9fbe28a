"""A similar question's answer never crosses tenant, model, system prompt, earlier turns, tools, format or sampling settings."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.flow.cache_keys import cache_key, tenant_of

PAIRS = 3_000
Body = dict[str, Any]
Change = Callable[[Body, random.Random], None]


def draw(chance: random.Random) -> Body:
    """A chat request with any of the fields that matter."""
    body: Body = {"model": chance.choice(["a", "b", "c"]), "messages": []}
    if chance.random() < 0.6:
        body["messages"].append({"role": "system", "content": chance.choice(["Be brief.", "Be kind.", "Be brief. "])})
    for _ in range(chance.randrange(3)):
        body["messages"].append({"role": "user", "content": chance.choice(["Hi", "Hello", "1"])})
        body["messages"].append({"role": "assistant", "content": chance.choice(["Yes?", "No.", ""])})
    body["messages"].append({"role": "user", "content": f"question {chance.randrange(10)}"})
    for name, values in OPTIONS.items():
        if chance.random() < 0.3:
            body[name] = chance.choice(values)
    return body


OPTIONS: dict[str, list[Any]] = {
    "temperature": [0, 0.5, 1],
    "top_p": [0.1, 0.9],
    "seed": [1, 2, "1"],
    "max_tokens": [1, 10],
    "stop": ["x", ["x"], ["x", "y"]],
    "frequency_penalty": [0, 1],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n"}},
    ],
    "tools": [[{"type": "function", "function": {"name": "f"}}], [{"type": "function", "function": {"name": "g"}}]],
    "vendor_option": [True, 1, "1"],
}
IRRELEVANT = {"stream": [True, False], "user": ["u", "v"], "metadata": [{}, {"a": 1}]}


def _model(body: Body, chance: random.Random) -> None:
    body["model"] += "x"


def _system(body: Body, chance: random.Random) -> None:
    if body["messages"][0]["role"] == "system":
        body["messages"][0]["content"] += chance.choice(["!", " ", "\n"])
    else:
        body["messages"].insert(0, {"role": "system", "content": ""})


def _earlier_turns(body: Body, chance: random.Random) -> None:
    place = chance.randrange(len(body["messages"]))
    turn = {"role": chance.choice(["user", "assistant"]), "content": chance.choice(["", "Hi"])}
    body["messages"].insert(place, turn)


def _option(name: str) -> Change:
    def change(body: Body, chance: random.Random) -> None:
        left = [value for value in [*OPTIONS[name], None] if not _same(value, body.get(name))]
        body[name] = chance.choice(left)

    return change


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


CHANGES: dict[str, Change] = {
    "model": _model,
    "system prompt": _system,
    "earlier turns": _earlier_turns,
    **{name: _option(name) for name in OPTIONS},
}


def call(body: Body, tenant: str) -> ApiRequest:
    return ApiRequest(APIS["chat"], body, b"", {}, tenant_of({"authorization": f"Bearer {tenant}"}), "id")


def test_no_hit_crosses_what_the_answer_depends_on_and_nothing_else_makes_a_namespace() -> None:
    chance = random.Random(0)
    crossed, changes, matched = [], Counter[str](), 0
    for _ in range(PAIRS):
        one = draw(chance)
        other, tenant, backend = orjson.loads(orjson.dumps(one)), "t", "b"
        other["messages"][-1]["content"] = f"question {chance.randrange(10)}"
        for name, values in IRRELEVANT.items():
            other[name] = chance.choice(values)
        first, second = cache_key(call(one, "t"), "b"), cache_key(call(other, "t"), "b")
        if first.text is not None and second.text is not None:
            matched += 1
            assert first.namespace == second.namespace
        what = chance.choice([*CHANGES, "tenant", "backend"])
        if what == "tenant":
            tenant = "u"
        elif what == "backend":
            backend = "c"
        else:
            CHANGES[what](other, chance)
        second = cache_key(call(other, tenant), backend)
        changes[what] += 1
        if first.exact == second.exact or first.namespace == second.namespace:
            crossed.append((what, one, other))
    assert not crossed[:3]
    assert min(changes.values()) > PAIRS / len(changes) / 2
    assert matched > PAIRS / 4
