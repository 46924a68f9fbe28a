"""Sub-agents: an argument of a tool call of their parent is their prompt."""

import pytest

from kvproxy.apis.json import JsonObject
from kvproxy.apis.sub_agents import call_arguments, called_digests, prompt_digests

TASK = "Read all files and report which of them are tests."
ARGUMENTS = f'{{"prompt": "{TASK}", "count": 3}}'
CHAT: JsonObject = {"tool_calls": [{"id": "1", "function": {"name": "run", "arguments": ARGUMENTS}}]}
BLOCK: JsonObject = {"type": "tool_use", "id": "2", "name": "run", "input": {"prompt": TASK, "count": 3}}
ITEM: JsonObject = {"type": "function_call", "call_id": "3", "name": "run", "arguments": ARGUMENTS}


@pytest.mark.parametrize("message", [CHAT, {"content": [BLOCK]}, ITEM, {"content": [ITEM]}])
def test_a_call_passes_a_prompt_on(message: JsonObject) -> None:
    assert list(call_arguments(message)) == [TASK]
    blocks: JsonObject = {"content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": f"{TASK}\n"}]}
    for first in ({"content": TASK}, blocks):
        assert list(prompt_digests(first)) == list(called_digests(message))


def test_a_call_without_arguments_in_json_passes_no_prompt_on() -> None:
    assert list(call_arguments({"tool_calls": [{"function": {"arguments": "{no JSON"}}]})) == []
