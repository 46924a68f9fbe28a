"""Schemas of the bodies of requests to the APIs, from which the fuzzer generates requests."""

from typing import Any

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_YES: Schema = {"type": "boolean"}
_OBJECT: Schema = {"type": "object"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}


def _number(least: float, most: float) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most}


def _whole(least: int | None = None, most: int | None = None) -> Schema:
    bounds = {"minimum": least, "maximum": most}
    return {"type": "integer"} | {name: bound for name, bound in bounds.items() if bound is not None}


def _one_of(*names: str) -> Schema:
    return {"type": "string", "enum": list(names)}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _some(schema: Schema) -> Schema:
    return {"type": "array", "items": schema, "minItems": 1}


def _record(required: list[str], **fields: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": fields}


_CONTENT = _either(_TEXT, _some(_record(["type", "text"], type=_one_of("text"), text=_TEXT)))
_TURN = _record(["role", "content"], role=_one_of("system", "developer", "user", "assistant"), content=_CONTENT)
_FUNCTION = _record(["name"], name=_TEXT, description=_TEXT, parameters=_OBJECT)
_SAMPLING = {
    "model": _TEXT,
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "top_k": _whole(0),
    "seed": _whole(),
    "stream": _YES,
    "user": _TEXT,
    "cache_salt": _TEXT,
}
_OPENAI = _SAMPLING | {
    "n": _whole(1, 128),
    "stop": _either(_TEXT, _TEXTS),
    "max_tokens": _whole(0),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "prompt_logprobs": _whole(0, 20),
    "stream_options": _record([], include_usage=_YES),
}
_CHAT = _record(
    ["messages"],
    **_OPENAI,
    messages=_some(_TURN),
    logprobs=_YES,
    top_logprobs=_whole(0, 20),
    tools={"type": "array", "items": _record(["type", "function"], type=_one_of("function"), function=_FUNCTION)},
    tool_choice=_either(_one_of("none", "auto", "required"), _OBJECT),
    response_format=_record(["type"], type=_one_of("text", "json_object", "json_schema")),
)
_INPUT = _either(_TEXT, _some(_TEXT), _some(_whole(0)))
BODIES: dict[str, Schema] = {
    "/v1/chat/completions": _CHAT,
    "/admin/explain": _CHAT,
    "/admin/blocks/pins": _CHAT,
    "/v1/completions": _record(
        ["prompt"], **_OPENAI, prompt=_INPUT, best_of=_whole(1), echo=_YES, suffix=_TEXT, logprobs=_whole(0, 20)
    ),
    "/v1/messages": _record(
        ["messages", "max_tokens"],
        **_SAMPLING,
        messages=_some(_TURN),
        max_tokens=_whole(1),
        system=_CONTENT,
        stop_sequences=_TEXTS,
        tools={"type": "array", "items": _record(["name"], name=_TEXT, input_schema=_OBJECT)},
        thinking=_record(["type"], type=_one_of("enabled", "disabled"), budget_tokens=_whole(1)),
    ),
    "/v1/responses": _record(
        ["input"],
        **_SAMPLING,
        input=_either(_TEXT, _some(_TURN)),
        instructions=_TEXT,
        max_output_tokens=_whole(1),
        previous_response_id=_TEXT,
        tools={"type": "array", "items": _OBJECT},
        text=_OBJECT,
        reasoning=_OBJECT,
    ),
    "/v1/embeddings": _record(
        ["input"],
        model=_TEXT,
        input=_INPUT,
        encoding_format=_one_of("float", "base64"),
        dimensions=_whole(1),
        user=_TEXT,
    ),
}
