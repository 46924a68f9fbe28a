"""Reads the fields of a request, and rejects the fields that the engine does not support."""

from dataclasses import replace
from typing import Any

from kvproxy.apis.codecs.codec import DecodedRequest, PromptInput, ToolUse
from kvproxy.apis.codecs.generation import Grammar, SamplingParams
from kvproxy.apis.field_checks import check_flag, check_integer
from kvproxy.apis.json import Json, JsonMap, JsonObject, dumps, field, objects, text_of
from kvproxy.errors import InvalidRequest

_MAX_COMPLETIONS = 128
_ANY_OBJECT: JsonObject = {"type": "object"}
# Unsupported fields that change the response, with the values that disable them.
_UNSUPPORTED: dict[str, tuple[Json, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "suffix": ("",),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "modalities": (["text"],),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "use_beam_search": (False,),
    "web_search_options": (),
    # The response would have another form.
    "moderation": (),
    "multi_agent": (),
}
UNSUPPORTED = frozenset(_UNSUPPORTED)


def check_supported(body: JsonMap) -> None:
    for name, disabled in _UNSUPPORTED.items():
        if body.get(name) is not None and body[name] not in disabled:
            raise unsupported_error(name, name)
    check_integer(body, "top_k", least=-1, most=2**31 - 1)
    check_integer(body, "seed", least=-(2**63), most=2**64 - 1)
    check_integer(body, "priority", least=-(2**31), most=2**31 - 1)
    check_integer(body, "n", least=1, most=_MAX_COMPLETIONS)
    check_integer(body, "prompt_logprobs", least=0, most=20)
    check_flag(body, "ignore_eos")
    check_flag(body, "echo")
    if body.get("stream") and body.get("prompt_logprobs") is not None:
        raise InvalidRequest("prompt_logprobs are not available in streams: remove stream", param="prompt_logprobs")
    if not isinstance(body.get("cache_salt"), str | None):
        raise InvalidRequest("cache_salt must be a text", param="cache_salt")


def reject_fields(body: JsonMap, names: tuple[str, ...]) -> None:
    for name in names:
        if body.get(name):
            raise unsupported_error(name, name)


def unsupported_error(feature: str, param: str, fix: str = "remove it") -> InvalidRequest:
    return InvalidRequest(f"the embedded engine does not support {feature}: {fix}, or use --upstream", param=param)


def read_integer(body: JsonMap, name: str) -> int | None:
    value = body.get(name)
    return value if isinstance(value, int) else None


def read_number(body: JsonMap, name: str) -> float | None:
    value = body.get(name)
    return float(value) if isinstance(value, int | float) else None


def read_strings(body: JsonMap, name: str) -> tuple[str, ...]:
    value = body.get(name)
    if isinstance(value, str):
        return (value,)
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


def base_request(body: JsonMap, prompt: PromptInput, defaults: SamplingParams, **sampling: Any) -> DecodedRequest:
    """Decode the fields that all APIs share. In `sampling`, None selects the value of `defaults`."""
    given = {"temperature": read_number(body, "temperature"), "top_p": read_number(body, "top_p")} | sampling
    params = replace(defaults, **{name: value for name, value in given.items() if value is not None})
    salt = body.get("cache_salt")
    return DecodedRequest(
        prompt, params, salt=salt if isinstance(salt, str) else None, queue_priority=read_integer(body, "priority") or 0
    )


def only_text_error(param: str) -> InvalidRequest:
    return InvalidRequest("the embedded engine supports text only: send text parts, or use --upstream", param=param)


def with_text_content(message: JsonObject) -> JsonObject:
    """Return a message whose content is one text, as chat templates require."""
    content = message.get("content")
    text = text_of(content) if isinstance(content, list) else content or ""
    if text is None:
        raise only_text_error("messages")
    return {**message, "content": text}


def read_constraints(
    body: JsonMap, tools: tuple[JsonObject, ...], json_format: Json, param: str
) -> tuple[Grammar | None, ToolUse | None]:
    """Return the grammar of a JSON response, and the tools that the response may call; each is None if it is not requested.

    `json_format` is the value of the field `param`.
    """
    grammar, tool_use = read_json_format(json_format, param), _read_tool_use(body, tools)
    if grammar is not None and tool_use is not None:
        raise unsupported_error(f"{param} together with tools", param, "set tool_choice to none")
    return grammar, tool_use


def read_json_format(kind: Json, param: str) -> Grammar | None:
    name = None if kind is None else field(kind, "type")
    if kind is None or name == "text":
        return None
    if name == "json_object":
        return Grammar("json_schema", dumps(_ANY_OBJECT).decode())
    if name != "json_schema":
        raise unsupported_error(f"this `{param}`", param, "use the type text, json_object or json_schema")
    # Chat completions nest the schema.
    inner = field(kind, "json_schema")
    schema = field(kind if inner is None else inner, "schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{param} of type json_schema requires a schema, an object", param=param)
    return Grammar("json_schema", dumps(schema).decode())


def _read_tool_use(body: JsonMap, tools: tuple[JsonObject, ...]) -> ToolUse | None:
    # In OpenAI's or Anthropic's format.
    choice = body.get("tool_choice")
    kind = choice if isinstance(choice, str) else field(choice, "type")
    if not tools and objects(body.get("tools")) and kind not in (None, "auto", "none"):
        raise unsupported_error("hosted tools", "tool_choice", "set it to auto")
    if not tools or kind == "none":
        return None
    schemas = dict(map(_name_and_schema, tools))
    parallel = body.get("parallel_tool_calls") is not False and not field(choice, "disable_parallel_tool_use")
    if kind in (None, "auto"):
        return ToolUse(schemas, required=False, parallel=parallel)
    if kind in ("required", "any"):
        return ToolUse(schemas, required=True, parallel=parallel)
    name = field(choice, "name") or field(field(choice, "function"), "name")
    if kind not in ("function", "tool") or not isinstance(name, str):
        raise InvalidRequest("tool_choice must be auto, none, required, or the name of a tool", param="tool_choice")
    if name not in schemas:
        raise InvalidRequest(f"tool_choice names {name!r}, which is not in tools", param="tool_choice")
    return ToolUse({name: schemas[name]}, required=True, parallel=False)


def _name_and_schema(tool: JsonObject) -> tuple[str, JsonObject]:
    function = field(tool, "function")
    name, schema = field(function, "name"), field(function, "parameters")
    if tool.get("type") != "function" or not isinstance(name, str) or not name:
        raise unsupported_error("tools without a name, or of other types than function", "tools")
    return name, {**_ANY_OBJECT, **schema} if isinstance(schema, dict) else _ANY_OBJECT
