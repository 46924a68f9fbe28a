"""One small file per format, in its published shape, with requests counted by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvproxy.analyse.log_formats.registry import FORMATS
from kvproxy.analyse.request_log import RequestLog, read_log
from kvproxy.errors import InvalidRequest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
ANSWER = {
    "id": "c",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}],
}
TIME = "2026-11-01T10:00:00Z"
SECONDS = 1793527200.0


def attribute(key: str, value: object) -> dict[str, Any]:
    kind = "intValue" if isinstance(value, int) else "stringValue"
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}


# Name of the format, rows, and for each request: API, last text, response text, and time.
CASES: list[tuple[str, list[Any], list[tuple[str, str, str | None, float | None]]]] = [
    ("requests", [CHAT, CHAT | {"id": 7, "latency_ms": 1}], [("chat", "q", None, None)] * 2),
    (
        "requests",
        [{"time": SECONDS, "status": 200, "path": "/v1/chat/completions", "body": CHAT, "response": ANSWER}],
        [("chat", "q", "a", SECONDS)],
    ),
    (
        "batch",
        [{"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": {"model": "m", "input": "q"}}],
        [("responses", "q", None, None)],
    ),
    (
        "anthropic-batch",
        [{"custom_id": "1", "params": CHAT | {"max_tokens": 9}}],
        [("messages", "q", None, None)],
    ),
    (
        "fine-tuning",
        [{"messages": [*CHAT["messages"], {"role": "assistant", "content": "a"}]}],
        [("chat", "q", "a", None)],
    ),
    (
        "preferences",
        [
            {
                "input": {"messages": CHAT["messages"], "tools": []},
                "preferred_output": [{"role": "assistant", "content": "a"}],
                "non_preferred_output": [{"role": "assistant", "content": "b"}],
            }
        ],
        [("chat", "q", "a", None)],
    ),
    ("completions", [{"prompt": "q", "completion": "a"}], [("completions", "q", "a", None)]),
    (
        "litellm",
        [
            {
                "request_id": "r",
                "call_type": "acompletion",
                "api_key": "hash",
                "spend": 0.1,
                "startTime": TIME,
                "endTime": "2026-11-01T10:00:02Z",
                "model": "m",
                "messages": json.dumps(CHAT["messages"]),
                "response": json.dumps(ANSWER),
                "status": "success",
                "requester_ip_address": "127.0.0.1",
            },
            {
                "call_type": "anthropic_messages",
                "spend": 0.1,
                "startTime": TIME,
                "messages": {},
                "proxy_server_request": CHAT | {"max_tokens": 9, "system": "s"},
                "response": {},
            },
            {
                "call_type": "acompletion",
                "spend": 0,
                "startTime": TIME,
                "messages": CHAT["messages"],
                "status": "failure",
            },
        ],
        [("chat", "q", "a", SECONDS), ("messages", "q", None, SECONDS)],
    ),
    (
        "litellm",
        [
            {
                "id": "r",
                "call_type": "completion",
                "response_cost": 0.1,
                "startTime": SECONDS,
                "endTime": SECONDS + 1,
                "model": "m",
                "model_parameters": {"temperature": 0, "user": "u"},
                "messages": CHAT["messages"],
                "response": ANSWER,
                "hidden_params": {},
            }
        ],
        [("chat", "q", "a", SECONDS)],
    ),
    (
        "helicone",
        [
            {
                "request_created_at": TIME,
                "request_path": "https://oai.helicone.ai/v1/chat/completions",
                "request_body": CHAT,
                "response_body": ANSWER,
                "response_status": 200,
                "delay_ms": 900,
            },
            {"request_created_at": TIME, "request_body": CHAT, "response_status": 429},
        ],
        [("chat", "q", "a", SECONDS)],
    ),
    (
        "portkey",
        [
            {
                "id": "l",
                "trace_id": "t",
                "created_at": TIME,
                "request": {"url": "https://api.portkey.ai/v1/chat/completions", "body": CHAT},
                "response": {"status": 200, "body": ANSWER},
                "is_success": True,
                "ai_org": "openai",
                "ai_model": "m",
            }
        ],
        [("chat", "q", "a", SECONDS)],
    ),
    (
        "bifrost",
        [
            {
                "id": "l",
                "timestamp": TIME,
                "object": "chat.completion",
                "provider": "openai",
                "model": "m",
                "input_history": json.dumps(CHAT["messages"]),
                "output_message": json.dumps({"role": "assistant", "content": "a"}),
                "params": json.dumps({"temperature": 0}),
                "status": "success",
            }
        ],
        [("chat", "q", "a", SECONDS)],
    ),
    (
        "langfuse",
        [
            {
                "id": "o",
                "traceId": "t",
                "type": "GENERATION",
                "startTime": TIME,
                "endTime": "2026-11-01T10:00:01Z",
                "model": "m",
                "modelParameters": {"temperature": 0},
                "input": {"messages": CHAT["messages"]},
                "output": {"role": "assistant", "content": "a"},
                "usageDetails": {"input": 3, "output": 1},
                "latency": 1.0,
            },
            {"id": "p", "traceId": "t", "type": "SPAN", "startTime": TIME, "input": {"x": 1}},
        ],
        [("chat", "q", "a", SECONDS)],
    ),
    (
        "openpipe",
        [{"input": CHAT["messages"], "output": {"role": "assistant", "content": "a"}}],
        [("chat", "q", "a", None)],
    ),
    (
        "otel",
        [
            {
                "resourceSpans": [
                    {
                        "scopeSpans": [
                            {
                                "spans": [
                                    {
                                        "startTimeUnixNano": str(int(SECONDS * 1e9)),
                                        "attributes": [
                                            attribute("gen_ai.request.model", "m"),
                                            attribute("gen_ai.prompt.0.role", "user"),
                                            attribute("gen_ai.prompt.0.content", "q"),
                                            attribute("gen_ai.completion.0.role", "assistant"),
                                            attribute("gen_ai.completion.0.content", "a"),
                                        ],
                                    },
                                    {"attributes": [attribute("http.method", "GET")]},
                                ]
                            }
                        ]
                    }
                ]
            }
        ],
        [("chat", "q", "a", SECONDS)],
    ),
    (
        "otel",
        [
            {
                "start_time": TIME,
                "attributes": {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": "m",
                    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "s"}]),
                    "gen_ai.input.messages": json.dumps(
                        [{"role": "user", "parts": [{"type": "text", "content": "q"}]}]
                    ),
                    "gen_ai.output.messages": json.dumps(
                        [{"role": "assistant", "parts": [{"type": "text", "content": "a"}], "finish_reason": "stop"}]
                    ),
                },
            }
        ],
        [("chat", "q", "a", SECONDS)],
    ),
    (
        "sglang",
        [
            {
                "timestamp": TIME,
                "event": "request.finished",
                "rid": "r",
                "obj": {"text": "q", "sampling_params": {"max_new_tokens": 4, "temperature": 0}},
                "out": {"text": "a", "meta_info": {}},
            }
        ],
        [("completions", "q", "a", SECONDS)],
    ),
    (
        "sharegpt",
        [
            {
                "id": "i",
                "conversations": [
                    {"from": "human", "value": "p"},
                    {"from": "gpt", "value": "b"},
                    {"from": "human", "value": "q"},
                    {"from": "gpt", "value": "a"},
                ],
            }
        ],
        [("chat", "p", "b", None), ("chat", "q", "a", None)],
    ),
    (
        "lmsys",
        [
            {
                "conversation_id": "i",
                "model": "m",
                "conversation": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                "turn": 1,
            }
        ],
        [("chat", "q", "a", None)],
    ),
    ("mt-bench", [{"question_id": 1, "category": "c", "turns": ["q", "and then?"]}], [("chat", "q", None, None)]),
    (
        "promptfoo",
        [
            {
                "results": {
                    "version": 3,
                    "results": [
                        {
                            "prompt": {"raw": json.dumps(CHAT["messages"]), "label": "l"},
                            "provider": {"id": "openai:m"},
                            "response": {"output": "a"},
                            "vars": {},
                        }
                    ],
                }
            }
        ],
        [("chat", "q", "a", None)],
    ),
    (
        "har",
        [
            {
                "log": {
                    "version": "1.2",
                    "entries": [
                        {
                            "startedDateTime": TIME,
                            "time": 5,
                            "request": {
                                "method": "POST",
                                "url": "https://h/v1/chat/completions",
                                "headers": [{"name": "Authorization", "value": "Bearer k"}],
                                "postData": {"text": json.dumps(CHAT)},
                            },
                            "response": {"status": 200, "content": {"text": json.dumps(ANSWER)}},
                        },
                        {"startedDateTime": TIME, "request": {"method": "GET", "url": "https://h/"}},
                    ],
                }
            }
        ],
        [("chat", "q", "a", SECONDS)],
    ),
]


def read(text: str, name: str = "log.jsonl", format: str | None = None) -> RequestLog:
    return read_log(Path(name), text, "default", format=format)


def described(log: RequestLog) -> list[tuple[str, str, str | None, float | None]]:
    found = []
    for each in log.requests:
        answer = each.response
        if isinstance(answer, dict):
            answer = answer["choices"][0]["message"]["content"]  # type: ignore[index,call-overload,assignment]
        found.append((each.api.name, each.api.display_text(each.body), answer, each.time))
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("layout", ["lines", "array", "indented"])
@pytest.mark.parametrize(("name", "rows", "expected"), CASES, ids=[case[0] for case in CASES])
def test_each_format_is_recognised_and_read(
    name: str, rows: list[Any], expected: list[tuple[str, str, str | None, float | None]], layout: str
) -> None:
    if "entries" in json.dumps(rows) or name == "promptfoo":
        text = json.dumps(rows[0], indent=None if layout == "lines" else 2)
    elif layout == "lines":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        text = json.dumps(rows, indent=2 if layout == "indented" else None)
    log = read(text)
    assert log.format == next(each.title for each in FORMATS if each.name == name)
    assert described(log) == expected
    assert log.errors == []
    assert described(read(text, format=name)) == expected


def test_every_format_has_a_case() -> None:
    assert {each.name for each in FORMATS if each.has_requests} == {name for name, _, _ in CASES}


def test_fields_of_the_log_reach_no_request() -> None:
    for name, rows, _ in CASES:
        if name in ("litellm", "langfuse", "requests", "bifrost"):
            for request in read("".join(json.dumps(row) + "\n" for row in rows)).requests:
                allowed = {"model", "messages", "temperature", "max_tokens", "system", "stream", "user"}
                assert set(request.body) <= allowed
    assert read(json.dumps(CHAT | {"id": 7, "spend": 1})).ignored_fields == {"id", "spend"}
    assert read(json.dumps(CHAT | {"top_k": 4})).requests[0].body["top_k"] == 4


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ('{"question": "q"}', "log.jsonl", "nearest format, requests, needs messages or prompt or input"),
        ('{"custom_id": "1", "id": "b", "response": {"status_code": 200}}', "o.jsonl", "output of a batch"),
        ('{"custom_id": "1", "result": {"type": "succeeded"}}', "o.jsonl", "output of a batch"),
        (
            '{"call_type": "acompletion", "spend": 0, "startTime": "x", "messages": {}}',
            "s",
            "store_prompts_in_spend_logs",
        ),
        ("prompts:\n  - a\n", "pf.yaml", "YAML"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "azure.csv", "simulate reads traces"),
        ("q,a\n1,2\n", "table.csv", "convert its rows"),
        ("one\ntwo\n", "questions.txt", "--format prompts"),
        ("", "empty", "contains no requests"),
        ("[]", "empty.json", "contains no requests"),
        ('{"messages": [}', "broken.json", "not a JSON object"),
        ("INFO: Received request cmpl-1: params: SamplingParams(n=1), lora_request: None.", "vllm.log", "DEBUG"),
        ('{"question_id": 1, "model_id": "m", "choices": [{"turns": ["a"]}]}', "a.jsonl", "question.jsonl"),
    ],
)
def test_other_files_get_an_error_that_names_the_fix(text: str, name: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message.replace("(", r"\(")) as error:
        read(text, name)
    assert "\n" not in error.value.message


def test_text_logs_of_engines() -> None:
    log = read(
        "INFO 11-01 10:00:00 [logger.py:43] Received request cmpl-1: prompt: 'It\\'s a\\n', params: SamplingParams(n=1,"
        " max_tokens=7), prompt_token_ids: [1, 2], lora_request: None.\n"
        'DEBUG 11-01 10:00:00 Request cmpl-2 details: prompt: "q", prompt_token_ids: None, prompt_embeds shape: None.\n'
        "INFO other\n"
        "[2026-11-01] Receive: obj=GenerateReqInput(rid='r', text='hello', input_ids=None)\n",
        "server.log",
    )
    assert [each.body["prompt"] for each in log.requests] == ["It's a\n", "q", "hello"]
    assert log.requests[0].body["max_tokens"] == 7
    assert dict(log.skipped) == {"not JSON": [3]}


def test_conversations_are_requests_that_continue_no_earlier_one() -> None:
    turns = [{"from": "human", "value": "p"}, {"from": "gpt", "value": "b"}] * 3
    log = read(json.dumps([{"conversations": turns}, {"conversations": turns}]))
    assert (log.rows, len(log.requests), log.num_conversations, log.num_responses) == (2, 6, 2, 6)
