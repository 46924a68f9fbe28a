"""For each format, `estimate` counts the hits of a live proxy to which the requests of the file were sent."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from kvproxy.analyse.log_formats.registry import FORMATS
from kvproxy.settings import load_settings
from tests.commands.run import result
from tests.servers import run_app, run_proxy

Json = dict[str, Any]
Sent = list[tuple[str, Json]]
TIME = "2026-11-01T10:00:00Z"
CHAT, COMPLETIONS, MESSAGES, RESPONSES = (
    f"/v1/{name}" for name in ("chat/completions", "completions", "messages", "responses")
)


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    return {"role": "assistant", "content": text}


def answer_to(body: Json) -> str:
    return f"answer to {json.dumps(body.get('messages', body.get('prompt', body.get('input'))))}"


def response(path: str, body: Json) -> Json:
    text, usage = answer_to(body), {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    if path == CHAT:
        choice = {"index": 0, "message": assistant(text), "finish_reason": "stop"}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    if path == COMPLETIONS:
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    counts = {"input_tokens": 9, "output_tokens": 3}
    if path == MESSAGES:
        fields = {"stop_reason": "end_turn", "stop_sequence": None, "usage": counts}
        return {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": text}],
        } | fields
    item = {"id": "i", "type": "message", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": text, "annotations": []}]  # type: ignore[assignment]
    return {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [item], "usage": counts}


def chat(*messages: Json) -> Json:
    return {"model": "m", "messages": list(messages), "temperature": 0}


A, B = chat(user("What is a block?")), chat(user("What is a pool?"))
A_THEN = chat(*A["messages"], assistant(answer_to(A)), user("And why?"))
BODIES = [A, B, A, A_THEN, B, A]
"""Three requests, and three exact hits."""
PROMPTS = ["a", "b", "a", "c", "b", "a"]


def lines(rows: list[Json]) -> str:
    """Return JSON lines. Each row has an id of its own: one of two equal rows with an id would be a copy."""
    ids = [{name: f"{row[name]} {at}" for name in ("id", "request_id") if name in row} for at, row in enumerate(rows)]
    return "".join(json.dumps(row | own) + "\n" for row, own in zip(rows, ids, strict=True))


def chat_log(row: Callable[[Json], Json]) -> tuple[str, Sent]:
    return lines([row(body) for body in BODIES]), [(CHAT, body) for body in BODIES]


def without_temperature(row: Callable[[Json], Json]) -> tuple[str, Sent]:
    bodies = [{"model": "m", "messages": body["messages"]} for body in BODIES]
    return lines([row(body) for body in bodies]), [(CHAT, body) for body in bodies]


def completions_log(row: Callable[[str], Json], **fields: Any) -> tuple[str, Sent]:
    return lines([row(text) for text in PROMPTS]), [
        (COMPLETIONS, {"model": "m", "prompt": text, **fields}) for text in PROMPTS
    ]


def attribute(key: str, value: str) -> Json:
    return {"key": key, "value": {"stringValue": value}}


def span(body: Json) -> Json:
    attributes = [attribute("gen_ai.request.model", "m")]
    for at, message in enumerate(body["messages"]):
        attributes += [attribute(f"gen_ai.prompt.{at}.{name}", message[name]) for name in ("role", "content")]
    attributes += [
        attribute("gen_ai.completion.0.role", "assistant"),
        attribute("gen_ai.completion.0.content", answer_to(body)),
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": attributes}]}]}]}


def har(body: Json) -> Json:
    request = {"method": "POST", "url": f"https://h{CHAT}", "headers": [], "postData": {"text": json.dumps(body)}}
    answer = {"status": 200, "content": {"text": json.dumps(response(CHAT, body))}}
    return {"startedDateTime": TIME, "time": 5, "request": request, "response": answer}


def conversations(row: Callable[[list[Json]], Json]) -> tuple[str, Sent]:
    """Two conversations with the same first question: four requests, one of them an exact hit."""
    first = [user("q"), assistant(answer_to({"messages": [user("q")]}))]
    whole = [[*first, user(more), assistant("then")] for more in ("x", "y")]
    sent = [(CHAT, {"model": "m", "messages": each[:end]}) for each in whole for end in (1, 3)]
    return lines([row(each) for each in whole]), sent


def litellm(body: Json) -> Json:
    row = {
        "request_id": "r",
        "call_type": "acompletion",
        "spend": 0.1,
        "startTime": TIME,
        "endTime": TIME,
        "api_key": "k",
    }
    return row | {
        "messages": {},
        "proxy_server_request": json.dumps(body),
        "response": json.dumps(response(CHAT, body)),
    }


def messages_body(body: Json) -> Json:
    return body | {"max_tokens": 9, "system": "s"}


CASES: dict[str, Callable[[], tuple[str, Sent]]] = {
    "requests": lambda: chat_log(lambda body: {"id": answer_to(body), "latency_ms": 3, **body}),
    "batch": lambda: (
        lines(
            [
                {"custom_id": str(at), "method": "POST", "url": RESPONSES, "body": {"model": "m", "input": text}}
                for at, text in enumerate(PROMPTS)
            ]
        ),
        [(RESPONSES, {"model": "m", "input": text}) for text in PROMPTS],
    ),
    "kvproxy": lambda: (
        lines(
            [
                {"custom_id": str(at), "url": CHAT, "body": body, "layer": "forward", "time": TIME}
                for at, body in enumerate(BODIES)
            ]
        ),
        [(CHAT, body) for body in BODIES],
    ),
    "anthropic-batch": lambda: (
        lines([{"custom_id": str(at), "params": messages_body(body)} for at, body in enumerate(BODIES)]),
        [(MESSAGES, messages_body(body)) for body in BODIES],
    ),
    "bedrock": lambda: (
        lines(
            [
                {
                    "schemaType": "ModelInvocationLog",
                    "modelId": "m",
                    "input": {
                        "inputContentType": "application/json",
                        "inputBodyJson": {"anthropic_version": "bedrock-2023-05-31", **messages_body(body)},
                    },
                }
                for body in BODIES
            ]
        ),
        [(MESSAGES, messages_body(body)) for body in BODIES],
    ),
    "fine-tuning": lambda: without_temperature(
        lambda body: {"messages": [*body["messages"], assistant(answer_to(body))]}
    ),
    "preferences": lambda: without_temperature(
        lambda body: {
            "input": {"messages": body["messages"]},
            "preferred_output": [assistant(answer_to(body))],
            "non_preferred_output": [assistant("no")],
        }
    ),
    "completions": lambda: completions_log(lambda text: {"prompt": text, "completion": answer_to({"prompt": text})}),
    "litellm": lambda: chat_log(litellm),
    "helicone": lambda: chat_log(
        lambda body: {
            "request_created_at": TIME,
            "request_body": body,
            "response_body": response(CHAT, body),
            "response_status": 200,
        }
    ),
    "portkey": lambda: chat_log(
        lambda body: {
            "id": "l",
            "trace_id": answer_to(body),
            "created_at": TIME,
            "request": {"url": f"https://api.portkey.ai{CHAT}", "body": body},
            "response": {"status": 200, "body": response(CHAT, body)},
            "is_success": True,
            "ai_model": "m",
        }
    ),
    "bifrost": lambda: chat_log(
        lambda body: {
            "id": "l",
            "timestamp": TIME,
            "object": "chat.completion",
            "provider": "openai",
            "model": "m",
            "input_history": json.dumps(body["messages"]),
            "output_message": json.dumps(assistant(answer_to(body))),
            "params": json.dumps({"temperature": 0}),
            "status": "success",
        }
    ),
    "langfuse": lambda: chat_log(
        lambda body: {
            "id": answer_to(body),
            "traceId": "t",
            "type": "GENERATION",
            "startTime": TIME,
            "model": "m",
            "modelParameters": {"temperature": 0},
            "input": body["messages"],
            "output": assistant(answer_to(body)),
            "latency": 1.0,
        }
    ),
    "openpipe": lambda: without_temperature(
        lambda body: {"input": body["messages"], "output": assistant(answer_to(body))}
    ),
    "otel": lambda: without_temperature(span),
    "sglang": lambda: completions_log(
        lambda text: {
            "timestamp": TIME,
            "event": "request.finished",
            "rid": "r",
            "obj": {"text": text, "sampling_params": {"temperature": 0}},
            "out": {"text": answer_to({"prompt": text})},
        },
        temperature=0,
    ),
    "sharegpt": lambda: conversations(
        lambda turns: {
            "id": "i",
            "conversations": [
                {"from": "gpt" if turn["role"] == "assistant" else "human", "value": turn["content"]} for turn in turns
            ],
        }
    ),
    "lmsys": lambda: conversations(lambda turns: {"conversation_id": "i", "model": "m", "conversation": turns}),
    "mt-bench": lambda: (
        lines([{"question_id": at, "turns": [text, "more"]} for at, text in enumerate(PROMPTS)]),
        [(CHAT, {"model": "m", "messages": [user(text)]}) for text in PROMPTS],
    ),
    "promptfoo": lambda: (
        json.dumps(
            {
                "results": {
                    "version": 3,
                    "results": [
                        {
                            "prompt": {"raw": json.dumps(body["messages"])},
                            "provider": {"id": "openai:m"},
                            "response": {"output": answer_to(body)},
                        }
                        for body in BODIES
                    ],
                }
            }
        ),
        [(CHAT, {"model": "m", "messages": body["messages"]}) for body in BODIES],
    ),
    "har": lambda: (json.dumps({"log": {"entries": list(map(har, BODIES))}}), [(CHAT, body) for body in BODIES]),
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Path]]:
    data = tmp_path_factory.mktemp("data")
    (data / "kvproxy.toml").write_text("[cache]\nsemantic = false\n")

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(response(request.url.path, await request.json()))

    with run_app(Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])) as upstream:
        settings = load_settings(data=data, upstream=upstream)
        with run_proxy(settings) as (url, _), httpx.Client(base_url=url, timeout=300) as client:
            yield client, data


def test_every_format_has_a_case() -> None:
    assert set(CASES) == {each.name for each in FORMATS if each.has_requests}


@pytest.mark.parametrize("name", CASES)
def test_estimate_counts_the_hits_of_a_live_proxy(proxy: tuple[httpx.Client, Path], tmp_path: Path, name: str) -> None:
    client, data = proxy
    text, sent = CASES[name]()
    live = Counter[str]()
    for path, body in sent:
        # A tenant per format, so that no format has the hits of another.
        done = client.post(path, json=body, headers={"authorization": f"Bearer {name}"}).raise_for_status()
        status = done.headers["cache-status"]
        live["forwarded" if "fwd" in status else "exact"] += 1
    (file := tmp_path / "log.jsonl").write_text(text)
    found = result("estimate", file, "--data", data, "--model", "m")
    assert found["log"]["format"] == next(each.title for each in FORMATS if each.name == name)
    assert {layer: found[layer] for layer in ("exact", "forwarded")} == dict(live)
    assert live["exact"] >= 1
    assert found["log"]["skipped"] == {}
    assert found["log"]["malformed"] == []
