"""One small file per format, in its published shape, with requests counted by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvproxy.analyse.bills.logged_spending import report_spending
from kvproxy.analyse.log_formats.registry import FORMATS
from kvproxy.analyse.request_log import RequestLog, read_log
from kvproxy.analyse.session_report import report_sessions
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.errors import InvalidRequest
from kvproxy.settings.journal import JournalSettings
from tests.commands.run import kvproxy

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
        "kvproxy",
        [{"custom_id": "1", "url": "/v1/chat/completions", "body": CHAT, "layer": "forward", "time": SECONDS}],
        [("chat", "q", None, SECONDS)],
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
        "bedrock",
        [
            {
                "schemaType": "ModelInvocationLog",
                "timestamp": TIME,
                "modelId": "us.anthropic.claude-sonnet-4-20250514-v1:0",
                "input": {"inputContentType": "application/json", "inputBodyJson": body, "inputTokenCount": 3},
                "output": {"outputTokenCount": 9},
            }
            | more
            for body, more in (
                ({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": CHAT["messages"]}, {}),
                (
                    {
                        "messages": [{"role": "user", "content": [{"text": "q"}, {"cachePoint": {"type": "default"}}]}],
                        "inferenceConfig": {"maxTokens": 9},
                    },
                    {"operation": "Converse"},
                ),
                ({}, {"errorCode": "ThrottlingException"}),
            )
        ],
        [("messages", "q", None, SECONDS), ("messages", "q", None, SECONDS)],
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
        "otel",
        [
            {
                "start_time": TIME,
                "attributes": {
                    "openinference.span.kind": "LLM",
                    "llm.model_name": "m",
                    "llm.invocation_parameters": '{"temperature": 0}',
                    "llm.input_messages.0.message.role": "user",
                    "llm.input_messages.0.message.contents.0.message_content.text": "q",
                    "llm.output_messages.0.message.role": "assistant",
                    "llm.output_messages.0.message.content": "a",
                },
            },
            # Phoenix nests the names.
            {
                "start_time": TIME,
                "attributes": {
                    "openinference": {"span": {"kind": "LLM"}},
                    "llm": {
                        "model_name": "m",
                        "input_messages": [{"message": {"role": "user", "content": "q"}}],
                        "output_messages": [{"message": {"role": "assistant", "content": "a"}}],
                    },
                },
            },
            {"attributes": {"openinference.span.kind": "CHAIN", "input.value": "q"}},
        ],
        [("chat", "q", "a", SECONDS)] * 2,
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
    logged = CHAT | {"response": ANSWER, "startTime": TIME, "status": 200, "completion": None, "spend": 1, "ts": ""}
    assert read(json.dumps(logged)).ignored_fields == {"spend"}
    assert read(json.dumps(CHAT | {"startTime": "today", "output": "a", "answer": "b"})).ignored_fields == {
        "startTime",
        "output",
    }
    assert read(json.dumps(CHAT | {"top_k": 4})).requests[0].body["top_k"] == 4


@pytest.mark.parametrize(
    "row",
    [
        # Cloudflare's AI Gateway names the route without its version.
        {"path": "chat/completions", "request": json.dumps(CHAT), "response": json.dumps(ANSWER), "status_code": 200},
        # Kong and Portkey log the HTTP messages.
        {
            "request": {"uri": "/v1/chat/completions", "body": json.dumps(CHAT)},
            "response": {"status": 200, "body": ANSWER},
        },
    ],
)
def test_rows_of_other_gateways_are_read(row: dict[str, Any]) -> None:
    (request,) = read(json.dumps(row)).requests
    assert (request.body, request.response) == (CHAT | {"stream": False}, ANSWER)
    status = {"response": {"status": 500, "body": {}}} if "status_code" not in row else {"status_code": 500}
    with pytest.raises(InvalidRequest, match="1 failed"):
        read(json.dumps(row | status))


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
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n", "azure.csv", "simulate reads traces"),
        ('{"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]}', "t.jsonl", "simulate reads traces"),
        ("prompt\tanswer\nWhat?\tThis.\n", "table.txt", "table with the columns prompt, answer"),
        ("start_time,input_tokens,output_tokens\n1,2,3\n", "usage", "table with the columns start_time"),
        ("[[1], 2]", "nested.json", "2 values, and none is a JSON object"),
        ('[{"messages": [', "cut.json", "line 1: this is no JSON: unexpected end of data"),
        ('{"id": 1, "object": "chat.completion", "choices": []}', "r.jsonl", "responses without their requests"),
        ('{"messages": [], "temperature": NaN}', "nan.jsonl", "not a JSON object"),
        ("---\nprompts: [a]\n", "prompts.txt", "YAML"),
        ('{"instruction": "q", "context": "", "response": "a"}', "d.jsonl", "nearest format, requests"),
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


def quoted(value: object) -> str:
    """Return JSON as a field of a table."""
    text = json.dumps(value).replace('"', '""')
    return f'"{text}"'


def docker(*parts: str) -> str:
    rows = ({"log": part, "stream": "stdout", "time": TIME} for part in parts)
    return "".join(json.dumps(row) + "\n" for row in rows)


LINE = json.dumps(CHAT)
PART = "2026-11-01T10:00:00.1Z stdout"
LAYOUTS = {
    "requests": [
        f"{LINE}\r\n{LINE}\r\n",
        json.dumps(CHAT, indent=2) + "\n" + json.dumps(CHAT, indent=2),
        f"{LINE}\r{LINE}\r",
        f"\x1e{LINE}\n\x1e{LINE}\n",
    ],
    "requests in Docker's log": [
        docker(f"{LINE}\n", f"{LINE}\n"),
        docker(LINE[:30], f"{LINE[30:]}\n", LINE[:9], LINE[9:20], f"{LINE[20:]}\n"),
    ],
    "requests in journald's log": [(json.dumps({"__REALTIME_TIMESTAMP": "1", "MESSAGE": LINE}) + "\n") * 2],
    "requests in Kubernetes' log": [
        f"{PART} F {LINE}\n" * 2,
        f"{PART} P {LINE[:30]}\n{PART} F {LINE[30:]}\n" * 2,
    ],
    "requests in lines with a prefix": [
        f"[pod/web/app] {LINE}\n" * 2,
        f"web-1  | {LINE}\n" * 2,
        f"Nov 01 10:00:00 host app[12]: {LINE}\n" * 2,
    ],
    "requests in a table": [
        "time,request\n" + f"1,{quoted(CHAT)}\n" * 2,
        "model;messages\n" + f"m;{quoted(CHAT['messages'])}\n" * 2,
    ],
    "Langfuse export in a table": [
        "id,traceId,startTime,type,model,input,output\n"
        + "".join(f"{id},t,{TIME},GENERATION,m,{quoted(CHAT['messages'])},a\n" for id in "op"),
    ],
}


@pytest.mark.parametrize(("format", "text"), [(name, text) for name, texts in LAYOUTS.items() for text in texts])
def test_rows_are_found_in_other_layouts(format: str, text: str) -> None:
    log = read(text, "some.log")
    assert log.format == format
    assert [each.body["messages"] for each in log.requests] == [CHAT["messages"]] * 2
    assert {each.body["model"] for each in log.requests} == {"m"}
    assert log.errors == []


# By the reference of fields of Langfuse's blob storage, and of its API.
_LANGFUSE = {"id": "o", "type": "GENERATION", "input": json.dumps(CHAT["messages"]), "output": "a"}
LANGFUSE_ROWS = [
    _LANGFUSE
    | {"trace_id": "t", "session_id": "s", "start_time": "2026-11-01 10:00:00.000000", "provided_model_name": "m"},
    _LANGFUSE | {"traceId": "t", "sessionId": "s", "startTime": TIME, "providedModelName": "m"},
]


@pytest.mark.parametrize("row", LANGFUSE_ROWS)
@pytest.mark.parametrize(
    ("usage", "prompt", "cached", "written"),
    [
        ({"input": 30, "output": 20, "total": 50}, 30, None, None),
        ({"input": "30", "input_cached_tokens": "150", "output": "20", "total": "200"}, 180, 150, None),
        ({"input": 30, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 50, "output": 20}, 180, 100, 50),
        # Parts of the input, by the total.
        ({"input": 180, "input_cached_tokens": 150, "output": 20, "total": 200}, 180, 150, None),
        ({"input": 180, "output": 5, "output_reasoning_tokens": 15, "total": 200}, 180, None, None),
    ],
)
def test_usage_of_langfuse(
    row: dict[str, Any], usage: dict[str, Any], prompt: int, cached: int | None, written: int | None
) -> None:
    name = "usage_details" if "trace_id" in row else "usageDetails"
    (request,) = read(json.dumps(row | {name: usage})).requests
    assert isinstance(request.response, dict)
    writes = {} if written is None else {"cache_write_tokens": written}
    details = {"prompt_tokens_details": {"cached_tokens": cached, **writes}}
    assert request.response["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 20,
        **({} if cached is None else details),
    }
    assert (request.body["model"], request.names_model) == ("m", True)


def test_unknown_writes_are_no_lost_breakpoints() -> None:
    """Exports of models that write their cache without breakpoints have no counter of writes."""
    messages = [{"role": "user", "content": " ".join(f"word{number}" for number in range(4_000))}]
    usage = {"input": 10, "input_cached_tokens": 0, "output": 5}
    rows = [
        LANGFUSE_ROWS[1]
        | {"input": json.dumps(messages[:1] * count), "startTime": f"2026-11-01T10:00:0{count}Z"}
        | {"usageDetails": usage | {"input": 9_000 * count}, "providedModelName": "gpt-5"}
        for count in (1, 2)
    ]
    log = read("\n".join(map(json.dumps, rows)))
    results = {row.result for row in report_sessions(log.requests, [], JournalSettings()).ledger.rows}
    assert results == {"evicted", "new"}


@pytest.mark.parametrize(
    ("prompt", "completion", "cached", "written"),
    [
        (
            "gen_ai.usage.input_tokens",
            "gen_ai.usage.output_tokens",
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.cache_creation.input_tokens",
        ),
        (
            "gen_ai.usage.prompt_tokens",
            "gen_ai.usage.completion_tokens",
            "gen_ai.usage.cache_read_input_tokens",
            "gen_ai.usage.cache_creation_input_tokens",
        ),
        (
            "llm.token_count.prompt",
            "llm.token_count.completion",
            "llm.token_count.prompt_details.cache_read",
            "llm.token_count.prompt_details.cache_write",
        ),
    ],
)
def test_usage_of_spans(prompt: str, completion: str, cached: str, written: str) -> None:
    messages = [
        attribute("gen_ai.prompt.0.role", "user"),
        attribute("gen_ai.prompt.0.content", "q"),
        attribute("gen_ai.completion.0.role", "assistant"),
        attribute("gen_ai.completion.0.content", "a"),
    ]
    usage = [attribute(prompt, 180), attribute(completion, 20), attribute(cached, 100), attribute(written, 50)]
    (request,) = read(json.dumps({"attributes": messages + usage})).requests
    assert isinstance(request.response, dict)
    assert request.response["usage"] == {
        "prompt_tokens": 180,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 50},
    }
    tier = attribute("openai.response.service_tier", "flex")
    (request,) = read(json.dumps({"attributes": [*messages, *usage[:3], tier]})).requests
    assert isinstance(request.response, dict)
    assert request.service_tier == "flex"
    assert reported_reuse(request.response) == (180, 100, None, None, 0)
    # Unknown output has no number and no price.
    (request,) = read(json.dumps({"attributes": [*messages, usage[0]]})).requests
    total = report_spending([request], [], "model", JournalSettings()).total
    assert (total.input_tokens, total.reused_tokens, total.output_tokens, total.incomplete) == (180, None, None, 1)


def test_requests_without_a_model_are_counted() -> None:
    log = read(json.dumps(CHAT) + "\n" + json.dumps({"messages": CHAT["messages"]}))
    assert log.num_without_model == 1


def test_a_model_of_embeddings_names_the_api() -> None:
    """Rows of example_requests_to_parallel_process.jsonl of OpenAI's cookbook."""
    row = {"model": "text-embedding-ada-002", "input": "0\n", "metadata": {"row_id": 1}}
    assert [each.api.name for each in read(json.dumps(row)).requests] == ["embeddings"]


def test_long_fields_of_a_table_are_read() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 40_000}]})
    assert len(read('time,request\n1,"' + body.replace('"', '""') + '"\n', "a.csv").requests) == 1


def test_a_log_of_an_engine_in_a_log_of_docker() -> None:
    line = "INFO Received request cmpl-1: prompt: 'q', params: SamplingParams(n=1), prompt_token_ids: [1].\n"
    log = read(json.dumps({"log": line, "stream": "stderr", "time": TIME}))
    assert ([each.body["prompt"] for each in log.requests], log.format) == (["q"], "requests in Docker's log")


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


def read_column(text: str, name: str = "q.jsonl") -> tuple[list[str], dict[str, list[int]], list[int]]:
    log = read_log(Path(name), text, "m", column="question")
    asked = [each.body["messages"][-1]["content"] for each in log.requests]  # type: ignore[index,call-overload]
    return asked, dict(log.skipped), [error.line for error in log.errors]


def test_each_line_of_a_column_is_a_question_or_has_a_cause() -> None:
    rows = [
        '{"question": "What?"}',
        "{broken",
        '{"question": "cut',
        '{"question": "a",}',
        '{"other": 1}',
        '{"question": 7}',
        '{"question": null}',
        '{"question": ["a"]}',
        '{"question": " "}',
        "[1]",
        "5",
        "text",
        "# comment",
        "",
        '{"question": "Why?"}',
    ]
    asked, skipped, invalid = read_column("\n".join(rows))
    assert (asked, invalid) == (["What?", "Why?"], [2, 3, 4])
    assert skipped == {
        "without question": [5],
        "whose question is not text": [6, 7, 8],
        "blank": [14, 9],
        "not a JSON object": [10, 11],
        "not JSON": [12],
        "comment": [13],
    }
    with pytest.raises(InvalidRequest, match=r"q.jsonl, line 1: this is not a JSON object"):
        read_column("{broken\n{broken")


def test_rows_of_a_table_with_surplus_cells_are_invalid() -> None:
    table = 'question,answer\nWhat, exactly?,This.\n"What, then?",That.\nWhy?\u2028Tell,me\nHow?,a,,\n'
    assert read_column(table, "q.csv") == (["What, then?", "Why?\u2028Tell", "How?"], {}, [2])


def test_broken_lines_of_a_container_log_are_invalid() -> None:
    log = read(docker(f"{LINE}\n") + '{"log": "cut\nother\n')
    assert (len(log.requests), [error.line for error in log.errors], dict(log.skipped)) == (1, [2], {"not JSON": [3]})
    line = "INFO Received request cmpl-1: prompt: 'q', params: SamplingParams(n=1), prompt_token_ids: [1].\n"
    log = read(docker(line) + '{"log": "cut\n')
    assert (len(log.requests), [error.line for error in log.errors]) == (1, [2])


def test_conversations_are_requests_that_continue_no_earlier_one() -> None:
    turns = [{"from": "human", "value": "p"}, {"from": "gpt", "value": "b"}] * 3
    log = read(json.dumps([{"conversations": turns}, {"conversations": turns}]))
    assert (log.rows, len(log.requests), log.num_conversations, log.num_responses) == (2, 6, 2, 6)


@pytest.mark.parametrize(
    "odd", [10**400, -(10**400), "9" * 5_000, "²", "1e400", "nan", True, "0001-01-01T00:00:00+23:59", [], {"a": 1}]
)
def test_odd_numbers_of_a_row_are_unknown(odd: Any) -> None:
    row = {"time": odd, "status": "200", "path": "/v1/chat/completions", "body": CHAT, "response": ANSWER}
    helicone = {"request_created_at": TIME, "request_body": CHAT, "response_status": 200, "delay_ms": odd}
    for each, name in ((row, "requests"), (helicone, "helicone")):
        log = read_log(Path("log"), json.dumps(each), "m", format=name)
        assert len(log.requests) == 1
        assert log.requests[0].seconds == 0.0
    failed = json.dumps(row | {"time": 1, "status": odd})
    try:
        read_log(Path("log"), f"{failed}\n{json.dumps(CHAT)}", "m", format="requests")
    except InvalidRequest as error:
        pytest.fail(error.message)


@pytest.mark.parametrize("prompt", [r"'\x'", r"'\ud800'", r"'\N{no such name}'", "'a\x00'"])
def test_a_damaged_line_of_an_engine_is_skipped(prompt: str) -> None:
    lines = [
        f"INFO Received request {number}: prompt: {each}, params: SamplingParams(max_tokens={'9' * 5_000})"
        for number, each in enumerate((prompt, "'good'"))
    ]
    log = read_log(Path("vllm.log"), "\n".join(lines), "m")
    assert [each.body["prompt"] for each in log.requests] == ["good"]
    assert log.skipped["damaged"] == [1]


MESSAGE = {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "a"}]}
QUESTION = CHAT["messages"]


@pytest.mark.parametrize(
    ("body", "response", "name"),
    [
        ({"messages": QUESTION}, MESSAGE | {"stop_reason": "end_turn"}, "messages"),
        ({"messages": QUESTION}, {"usage": {"input_tokens": 9, "output_tokens": 2}}, "messages"),
        ({"messages": QUESTION}, {"usage": {"prompt_tokens": 9, "completion_tokens": 2}}, "chat"),
        ({"messages": QUESTION, "stop_sequences": ["."]}, ANSWER | {"object": "chat.completion"}, "chat"),
        ({"messages": QUESTION, "system": "s"}, "a", "messages"),
        ({"prompt": "q"}, {"object": "text_completion", "choices": [{"index": 0, "text": "a"}]}, "completions"),
        ({"input": "q"}, {"object": "response", "output": [], "status": "completed"}, "responses"),
        ({"input": "q"}, {"object": "list", "data": [{"embedding": [0.5]}]}, "embeddings"),
    ],
)
def test_the_form_of_the_response_determines_the_api(body: dict[str, Any], response: Any, name: str) -> None:
    log = read(json.dumps({"timestamp": TIME, "request": {"model": "m", **body}, "response": response}))
    assert ([request.api.name for request in log.requests], log.other_apis) == ([name], {})


@pytest.mark.parametrize(
    ("response", "name"),
    [
        (MESSAGE | {"stop_reason": "end_turn"}, "messages"),
        (
            {"output": {"message": {"role": "assistant", "content": [{"text": "a"}]}}, "stopReason": "end_turn"},
            "converse",
        ),
        ({"content": "a"}, "unknown"),
        ({"usage": {"input_tokens": 9, "output_tokens": 2}}, None),
        (ANSWER, None),
        ({"error": {"message": "overloaded"}}, None),
        ("a", None),
    ],
)
def test_responses_of_another_api_than_the_request_are_counted(response: Any, name: str | None) -> None:
    row = {"path": "/v1/chat/completions", "body": CHAT, "response": response}
    assert read(json.dumps(row)).other_apis == ({} if name is None else {name: 1})


LITELLM = {
    "request_id": "chatcmpl-1",
    "call_type": "acompletion",
    "spend": 0.1,
    "startTime": TIME,
    "model": "gpt-4o",
    "messages": CHAT["messages"],
    "response": ANSWER | {"usage": {"prompt_tokens": 1_000, "completion_tokens": 10}},
    "status": "success",
}
PORTKEY = {"created_at": TIME, "request": {"body": CHAT}, "ai_model": "m", "is_success": True, "trace_id": "t"}
HELICONE = {"request_created_at": TIME, "request_body": CHAT, "response_status": 200}
BIFROST = {"timestamp": TIME, "provider": "openai", "model": "m", "input_history": json.dumps(CHAT["messages"])}
PROMPTFOO = {"prompt": {"raw": "q"}, "provider": "openai:m"}


@pytest.mark.parametrize(
    ("row", "miss", "hit"),
    [
        (LITELLM, {"cache_hit": "False"}, {"cache_hit": "True"}),
        (LITELLM, {"cache_hit": None}, {"cache_hit": True}),
        (HELICONE, {"cache_reference_id": "00000000-0000-0000-0000-000000000000"}, {"cache_reference_id": "7c6e"}),
        (PORTKEY, {"cache_status": "SEMANTIC MISS"}, {"cache_status": "SEMANTIC HIT"}),
        (BIFROST, {"cache_debug": '{"cache_hit":false}'}, {"cache_debug": {"cache_hit": True}}),
        (PROMPTFOO, {"response": {"output": "a"}}, {"response": {"output": "a", "cached": True}}),
    ],
)
def test_rows_that_a_cache_of_the_gateway_answered_reached_no_provider(
    row: dict[str, Any], miss: dict[str, Any], hit: dict[str, Any]
) -> None:
    log = read("\n".join(map(json.dumps, (row | hit, row | miss))))
    assert [request.line for request in log.requests] == [2]
    assert log.describe_skipped() == "1 answered by a cache of the gateway"


def test_a_copy_of_a_row_counts_once() -> None:
    """Exports overlap. Equal requests have other ids or times; rows without both are no copies."""
    later, other = LITELLM | {"startTime": "2026-11-01T10:00:01Z"}, LITELLM | {"request_id": "chatcmpl-2"}
    log = read("\n".join(map(json.dumps, (LITELLM, LITELLM, later, other, LITELLM))))
    assert [request.line for request in log.requests] == [1, 3, 4]
    assert log.describe_skipped() == "2 repeated (the same row with the same id)"
    dated = {"time": SECONDS, "path": "/v1/chat/completions", "body": CHAT, "response": ANSWER}
    for row, count in ((dated | {"id": 7}, 1), (dated, 2), (CHAT | {"id": 7}, 2)):
        assert len(read("\n".join([json.dumps(row)] * 2)).requests) == count


def test_all_rows_without_a_request_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    rows = [json.dumps(LITELLM), json.dumps(LITELLM | {"request_id": "2"}), '{"request_id": "cu', "garbage", '{"a": 1}']
    file.write_text("\n".join(rows))
    done = kvproxy("estimate", file, "--sessions", "--by", "model", "--data", tmp_path / "data")
    assert "read as LiteLLM log: 5 rows, 2 requests" in done.stderr
    assert "skipped 3 rows without a request: 1 not JSON (line 4), 2 malformed\n" in done.stderr
    assert "line 3: this is not a JSON object" in done.stderr
    assert "line 5: the row lacks call_type" in done.stderr
    # The tokens are those of the usage.
    assert "tokens are counted with" not in done.stderr


def test_a_plain_row_in_a_log_does_not_change_how_the_others_are_read() -> None:
    plain = {"time": SECONDS, "path": "/v1/chat/completions", "body": CHAT, "response": ANSWER}
    litellm = [LITELLM | {"request_id": f"{number}", "model": "openai/gpt-4o"} for number in range(2)]
    log = read("\n".join(map(json.dumps, [*litellm, plain])))
    assert [request.body["model"] for request in log.requests] == ["gpt-4o", "gpt-4o", "m"]
    assert log.format == "LiteLLM log (1 row as requests)"
    log = read("\n".join(map(json.dumps, [*litellm, plain])), format="litellm")
    assert [error.line for error in log.errors] == [3]


def test_spend_logs_of_litellm_have_written_tokens_and_the_model(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 5_010, "completion_tokens": 9, "total_tokens": 5_019}
    details = {"cached_tokens": 1_000, "cache_creation_tokens": 4_000}
    response = {"object": "chat.completion", "choices": ANSWER["choices"]}
    row = {
        "call_type": "acompletion",
        "spend": 0.1,
        "startTime": TIME,
        "endTime": TIME,
        "model": "anthropic/claude-sonnet-4-5",
        "model_group": "smart",
        "custom_llm_provider": "anthropic",
        "messages": CHAT["messages"],
        "status": "success",
    }
    rows = [
        row | {"response": response | {"usage": usage | {"prompt_tokens_details": details}}},
        # A response without usage: the columns and the metadata have it.
        row
        | {"response": response, "prompt_tokens": 5_010, "completion_tokens": 9}
        | {
            "metadata": {
                "additional_usage_values": {"cache_creation_input_tokens": 4_000, "cache_read_input_tokens": 1_000}
            }
        },
    ]
    file = tmp_path / "spend.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    report = json.loads(
        kvproxy("estimate", file, "--sessions", "--by", "model", "--data", tmp_path / "data", "--json").stdout
    )
    (model,) = report["rows"]
    assert (model["name"], model["unpriced"]) == ("claude-sonnet-4-5", 0)
    assert (model["input_tokens"], model["reused_tokens"], model["written_tokens"]) == (10_020, 2_000, 8_000)


@pytest.mark.parametrize(
    ("name", "money"),
    [
        ("litellm", {"response_cost": 0.25, "spend": 0.5}),
        ("litellm", {"spend": "0.25"}),
        ("helicone", {"cost": 0.25}),
        ("langfuse", {"costDetails": {"input": 0.2, "total": 0.25}}),
        ("langfuse", {"cost_details": '{"total": 0.25}'}),
        ("requests", {"response": ANSWER | {"usage": {"prompt_tokens": 3, "completion_tokens": 1, "cost": 0.25}}}),
        ("requests", {}),
        ("helicone", {"cost": 0}),
    ],
)
def test_the_money_of_a_log_is_read(name: str, money: dict[str, Any]) -> None:
    rows: dict[str, dict[str, Any]] = {
        "litellm": {"call_type": "completion", "startTime": TIME, "model_parameters": {}} | CHAT,
        "helicone": {"request_created_at": TIME, "request_body": CHAT, "response_status": 200},
        "langfuse": {"traceId": "t", "startTime": TIME, "model": "m", "input": CHAT, "output": "a"},
        "requests": CHAT,
    }
    (request,) = read_log(Path("log"), json.dumps(rows[name] | money), "m").requests
    assert request.cost == (0.25 if any(money.values()) else None)
