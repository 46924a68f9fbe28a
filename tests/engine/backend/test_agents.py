"""Requests of coding agents to the embedded engine: tools of all types, and fields that it ignores and names."""

import json
import logging
from typing import Any

import httpx
import pytest

from kvproxy.apis.codecs import CODECS
from kvproxy.apis.codecs.codec import Conversation
from kvproxy.apis.codecs.generation import Delta, SamplingParams, ToolCall, Usage
from kvproxy.errors import InvalidRequest
from kvproxy.http.services import Services
from tests.requests import api_request

IGNORED = "x-kvproxy-ignored"
QUESTION = "What is a block?"
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CLAUDE_CODE: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 32,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=sdk-cli"},
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Available agent types for the Agent tool: general"},
    ],
    "tools": [{"name": "Bash", "description": "Run a command", "input_schema": SCHEMA, "eager_input_streaming": True}],
    "metadata": {"user_id": '{"session_id": "1"}'},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}
CODEX: dict[str, Any] = {
    "model": "demo",
    "instructions": "You are Codex.",
    "input": [
        {"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "Rules"}]},
        {"type": "message", "id": "msg_2", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
    ],
    "tools": [
        {"type": "function", "name": "exec", "strict": False, "parameters": SCHEMA},
        {
            "type": "custom",
            "name": "apply_patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: "},
        },
        {"type": "web_search", "external_web_access": False},
        {
            "type": "namespace",
            "name": "agents",
            "description": "Agents",
            "tools": [
                {"type": "function", "name": "spawn", "parameters": SCHEMA},
                {"type": "custom", "name": "say", "description": "Say a text"},
            ],
        },
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "max_output_tokens": 32,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "session",
    "text": {"verbosity": "low"},
    "client_metadata": {"session": "1"},
}


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        ("/v1/messages", CLAUDE_CODE, {"tools", "context_management", "output_config.effort"}),
        (
            "/v1/messages",
            CLAUDE_CODE
            | {
                "thinking": {"type": "enabled", "budget_tokens": 1_024},
                "speed": "fast",
                "vendor": 1,
                "max_tokens": 32_000,
            }
            | {"stop_sequences": [" "]},
            {"max_tokens", "tools", "context_management", "output_config.effort", "thinking.budget_tokens", "vendor"},
        ),
        (
            "/v1/responses",
            CODEX,
            {
                *("tools", "tools.apply_patch.format", "tools.web_search", "reasoning.effort", "reasoning.summary"),
                *("include", "text.verbosity"),
            },
        ),
        (
            "/v1/chat/completions",
            {
                **{"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": QUESTION}]},
                **{"reasoning_effort": "low", "verbosity": "high", "bad\r\nname": 1, "store": False, "user": "u"},
                "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
            },
            {"tools", "reasoning_effort", "verbosity", "bad__name"},
        ),
    ],
    ids=["claude-code", "claude-code-with-a-budget", "codex", "chat"],
)
def test_agents_are_answered_and_told_what_was_ignored(
    demo: tuple[str, Services], path: str, body: dict[str, Any], ignored: set[str]
) -> None:
    reply = httpx.post(demo[0] + path, json=body, headers={"cache-control": "no-cache"}, timeout=300)
    assert reply.status_code == 200, reply.text
    assert set(reply.headers[IGNORED].split(", ")) == ignored
    assert "error" not in reply.text.split("data: ")[1 if body.get("stream") else 0][:20]


def test_each_ignored_field_is_logged_once(demo: tuple[str, Services], caplog: pytest.LogCaptureFixture) -> None:
    body = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": QUESTION}], "logged_once": 1}
    with caplog.at_level(logging.WARNING, logger="kvproxy"):
        for _ in range(3):
            httpx.post(f"{demo[0]}/v1/chat/completions", json=body, headers={"cache-control": "no-cache"}, timeout=300)
    lines = [record.getMessage() for record in caplog.records if "logged_once" in record.getMessage()]
    assert lines == ["the embedded engine ignores the field logged_once of requests to /v1/chat/completions"]


def test_a_plain_request_has_no_ignored_fields(demo: tuple[str, Services]) -> None:
    body = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": QUESTION}]}
    for path in ("/v1/chat/completions", "/v1/messages"):
        assert IGNORED not in httpx.post(demo[0] + path, json=body, headers={"cache-control": "no-cache"}).headers


@pytest.mark.parametrize(
    ("api", "fields", "param"),
    [
        ("messages", {"thread": {"type": "create"}}, "thread"),
        ("messages", {"compaction": {"type": "x"}}, "compaction"),
        ("messages", {"output_config": {"style": "x"}}, "output_config"),
        ("messages", {"thinking": {"type": "unknown"}}, "thinking"),
        ("messages", {"tools": [{"type": "web_search_20250305", "name": "s"}], "tool_choice": {"type": "any"}}, "tool_choice"),
        ("responses", {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ("responses", {"multi_agent": {"enabled": True}}, "multi_agent"),
        ("responses", {"moderation": {"model": "m"}}, "moderation"),
    ],
)  # fmt: skip
def test_fields_that_change_the_form_of_a_response_are_refused(api: Any, fields: dict[str, Any], param: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "input": "x", **fields}
    with pytest.raises(InvalidRequest, match=r"remove it|set it|use the type") as caught:
        CODECS[api].decode(body, SamplingParams())
    assert caught.value.param == param


def test_an_image_in_a_tool_result_is_not_dropped() -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}
    with pytest.raises(InvalidRequest, match="text only"):
        CODECS["messages"].decode({"messages": [{"role": "user", "content": [result]}]}, SamplingParams())


def test_tools_of_namespaces_and_custom_tools_are_functions_for_the_model() -> None:
    decoded = CODECS["responses"].decode(CODEX, SamplingParams())
    assert isinstance(decoded.prompt, Conversation)
    functions: list[Any] = [tool["function"] for tool in decoded.prompt.tools]
    assert [each["name"] for each in functions] == ["exec", "apply_patch", "agents__spawn", "agents__say"]
    assert decoded.tools is not None
    assert decoded.tools.schemas["apply_patch"]["required"] == ["input"]
    assert decoded.tools.schemas["agents__spawn"] == SCHEMA
    calls = (
        ToolCall("agents__spawn", '{"command": "ls"}'),
        ToolCall("agents__say", '{"input": "Hello"}'),
        ToolCall("apply_patch", '{"input": "*** Begin"}'),
    )
    encoder = CODECS["responses"].encoder(api_request(CODEX, "responses"), "demo", None)
    stream = b"".join(encoder.write(Delta(0, "", (), (), "stop", Usage(1, 1, 0), calls=calls)))
    output: Any = encoder.response()["output"]
    shown = [{name: item[name] for name in item if name not in ("id", "call_id", "status")} for item in output]
    assert shown == [
        {"type": "function_call", "name": "spawn", "namespace": "agents", "arguments": '{"command": "ls"}'},
        {"type": "custom_tool_call", "name": "say", "namespace": "agents", "input": "Hello"},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin"},
    ]
    assert b"response.custom_tool_call_input.done" in stream
    # The client sends the calls back with their outputs.
    outputs = [
        {"type": kind, "call_id": item["call_id"], "output": "done"}
        for item, kind in zip(output, ("function_call_output", *["custom_tool_call_output"] * 2), strict=True)
    ]
    history = CODECS["responses"].decode_prompt({**CODEX, "input": [*output, {"type": "web_search_call"}, *outputs]})
    assert isinstance(history, Conversation)
    sent: list[Any] = [each["tool_calls"] for each in history.messages if "tool_calls" in each]
    assert [call["function"]["name"] for [call] in sent] == ["agents__spawn", "agents__say", "apply_patch"]
    assert [json.loads(call["function"]["arguments"]) for [call] in sent[1:]] == [
        {"input": "Hello"},
        {"input": "*** Begin"},
    ]
    assert [each["content"] for each in history.messages if each["role"] == "tool"] == ["done"] * 3
