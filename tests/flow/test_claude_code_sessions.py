"""Requests in the form of Claude Code 2.1.197: a new session reads the tools of the previous one.

The sizes and marks are those of recorded requests of `claude -p`; the texts are fillers.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.apis.request_directives import RequestDirectives
from kvproxy.flow.prepare.breakpoints import with_breakpoints
from kvproxy.settings.rules import RuleSettings
from tests.anthropic_upstream import broken_rule
from tests.clients.anthropic_api import blocks_of
from tests.clients.prompt_cache import PromptCache, PromptUsage, rules_of

MODEL = "claude-opus-4-8"
MARK = {"cache_control": {"type": "ephemeral"}}
TOOL_BYTES = (9_400, 3_100, 4_800, 2_600, 15_900, 7_300, 4_100, 3_200, 9_900, 4_200)


def text(size: int, word: str = "word ", **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": (word * size)[:size], **more}


def body(session: str, turns: Sequence[str] = (), *, nonce: str) -> dict[str, Any]:
    """A request of a session in a folder of its own, after `turns` steps; interactive sessions have a nonce."""
    billing = f"x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=cli; cch={nonce};"
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [text(350), text(60, f"{session} ")]},
        {"role": "system", "content": f"Agent types of {session}. " * 250},
    ]
    for step in turns:
        messages.append({"role": "assistant", "content": [text(200, f"{step} ")]})
        messages.append({"role": "user", "content": [text(100, f"result of {step} ")]})
    last = messages[-1 if turns else 0]["content"]
    last[-1] = last[-1] | MARK
    return {
        "model": MODEL,
        "max_tokens": 32_000,
        "tools": [{"name": f"tool{size}", "description": text(size)["text"]} for size in TOOL_BYTES],
        "system": [
            text(len(billing), billing),
            text(60, "You are an agent. ", **MARK),
            text(5_900, f"You work in /home/{session}. ", **MARK),
        ],
        "messages": messages,
    }


def use(cache: PromptCache, sent: dict[str, Any], *, with_rule: bool) -> PromptUsage:
    control = RequestDirectives(rule=RuleSettings(name="r", breakpoints="5m"))
    request = ApiRequest(APIS["messages"], sent, dumps(sent), {}, "public", "1", control=control)
    forwarded: Any = with_breakpoints(request).body if with_rule else sent
    assert broken_rule(forwarded) is None
    return cache.use(rules_of(MODEL), list(blocks_of(forwarded)), "")


@pytest.mark.parametrize("with_rule", [False, True])
def test_a_new_session_reads_the_tools_of_the_previous_one(*, with_rule: bool) -> None:
    cache = PromptCache()
    for turns in ([], ["one"], ["one", "two"]):
        use(cache, body("first", turns, nonce="a1"), with_rule=with_rule)
    new = use(cache, body("second", nonce="b2"), with_rule=with_rule)
    tools = sum(len(dumps(tool)) for tool in body("", nonce="")["tools"]) // 4
    if with_rule:
        assert new.read == pytest.approx(tools, rel=0.02)
        # The second request of the session reads all of the first one.
        assert use(cache, body("second", ["one"], nonce="b2"), with_rule=True).read == new.total
    else:
        assert new.read == 0
