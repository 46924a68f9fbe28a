"""Schemas of request bodies. Further fields are allowed, since an upstream may support them."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
BOOL: Schema = {"type": "boolean"}
ANY: Schema = {"type": "object"}
TEXTS: Schema = {"type": "array", "items": TEXT}


def whole(least: int | None = None, most: int | None = None) -> Schema:
    """A whole number within bounds."""
    return {"type": "integer"} | _bounds(least, most)


def number(least: float | None = None, most: float | None = None) -> Schema:
    """A number within bounds."""
    return {"type": "number"} | _bounds(least, most)


def one_of(*names: str) -> Schema:
    """One of some texts."""
    return {"type": "string", "enum": list(names)}


def either(*schemas: Schema) -> Schema:
    """A value of at least one of several schemas."""
    return {"anyOf": list(schemas)}


def some(schema: Schema) -> Schema:
    """A list of at least one."""
    return {"type": "array", "items": schema, "minItems": 1}


def record(required: list[str], **fields: Schema) -> Schema:
    """An object with named fields; further fields are allowed."""
    return {"type": "object", "required": required, "properties": fields}


def _bounds(least: float | None, most: float | None) -> Schema:
    return {name: bound for name, bound in (("minimum", least), ("maximum", most)) if bound is not None}


_PART = record(["type", "text"], type=one_of("text"), text=TEXT)
_CONTENT = either(TEXT, some(_PART))
_TURN = record(["role", "content"], role=one_of("system", "developer", "user", "assistant"), content=_CONTENT)
_FUNCTION = record(["name"], name=TEXT, description=TEXT, parameters=ANY)
_TOOL = record(["type", "function"], type=one_of("function"), function=_FUNCTION)
_SAMPLING: dict[str, Schema] = {
    "model": TEXT,
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "top_k": whole(0),
    "seed": whole(),
    "stream": BOOL,
    "stream_options": record([], include_usage=BOOL),
    "user": TEXT,
    "priority": whole(),
    "cache_salt": TEXT,
    "ignore_eos": BOOL,
}
_OPENAI = _SAMPLING | {
    "n": whole(1, 128),
    "stop": either(TEXT, TEXTS),
    "max_tokens": whole(0),
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "prompt_logprobs": whole(0, 20),
}

BODIES: dict[str, Schema] = {
    "ChatRequest": record(
        ["messages"],
        **_OPENAI,
        messages=some(_TURN),
        max_completion_tokens=whole(1),
        logprobs=BOOL,
        top_logprobs=whole(0, 20),
        tools={"type": "array", "items": _TOOL},
        tool_choice=either(one_of("none", "auto", "required"), ANY),
        response_format=record(["type"], type=one_of("text", "json_object", "json_schema")),
    ),
    "CompletionsRequest": record(
        ["prompt"],
        **_OPENAI,
        prompt=either(TEXT, some(TEXT), some(whole(0))),
        best_of=whole(1),
        echo=BOOL,
        suffix=TEXT,
        logprobs=whole(0, 20),
    ),
    "MessagesRequest": record(
        ["messages", "max_tokens"],
        **_SAMPLING,
        messages=some(record(["role", "content"], role=one_of("user", "assistant"), content=_CONTENT)),
        max_tokens=whole(1),
        system=_CONTENT,
        stop_sequences=TEXTS,
        tools={"type": "array", "items": record(["name"], name=TEXT, input_schema=ANY)},
        metadata=ANY,
        thinking=record(["type"], type=one_of("enabled", "disabled"), budget_tokens=whole(1)),
    ),
    "ResponsesRequest": record(
        ["input"],
        **_SAMPLING,
        input=either(TEXT, some(_TURN)),
        instructions=TEXT,
        max_output_tokens=whole(1),
        previous_response_id=TEXT,
        store=BOOL,
        background=BOOL,
        include=TEXTS,
        tools={"type": "array", "items": ANY},
        text=ANY,
        reasoning=ANY,
        metadata=ANY,
    ),
    "EmbeddingsRequest": record(
        ["input"],
        model=TEXT,
        input=either(TEXT, some(TEXT), some(whole(0))),
        encoding_format=one_of("float", "base64"),
        dimensions=whole(1),
        user=TEXT,
    ),
    "Feedback": record(["right"], right=BOOL, question=TEXT),
    "Error": record(
        ["error"],
        error=record(
            ["message", "type"],
            message=TEXT,
            type=TEXT,
            param=either(TEXT, {"type": "null"}),
            code=either(TEXT, {"type": "null"}),
        ),
    ),
}
