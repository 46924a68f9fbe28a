"""What an answer must look like, in the engine's terms: JSON by a schema, and calls of tools."""

from dataclasses import dataclass

from kvproxy.apis.json import Json, JsonMap, JsonObject, dumps, field
from kvproxy.errors import InvalidRequest
from kvproxy.generation import Grammar

_ANY_OBJECT: JsonObject = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools an answer may call.

    Attributes:
        schemas: the parameters' JSON schema of each tool that may be called, by name.
        required: whether the answer must be a call; otherwise it may be text.
        parallel: whether it may be several.
    """

    schemas: dict[str, JsonObject]
    required: bool
    parallel: bool = True


def json_format(kind: Json, param: str) -> Grammar | None:
    """The grammar of a `response_format`, whose schema may lie one level deeper; None for text.

    Raises:
        InvalidRequest: it is of no known kind, or has no schema.
    """
    name = None if kind is None else field(kind, "type")
    if kind is None or name == "text":
        return None
    if name == "json_object":
        return Grammar("json_schema", dumps(_ANY_OBJECT).decode())
    if name != "json_schema":
        raise InvalidRequest(
            f"the embedded engine has text, json_object and json_schema for {param}.type, and no other", param=param
        )
    inner = field(kind, "json_schema")
    schema = field(kind if inner is None else inner, "schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{param} of type json_schema needs a schema, an object", param=param)
    return Grammar("json_schema", dumps(schema).decode())


def tool_use(body: JsonMap, tools: tuple[JsonObject, ...]) -> ToolUse | None:
    """The tools that a request of OpenAI's or Anthropic's form may call; None where it may call none.

    Raises:
        InvalidRequest: the choice is of no known kind, or names a tool that is not there.
    """
    choice = body.get("tool_choice")
    kind = choice if isinstance(choice, str) else field(choice, "type")
    if not tools or kind == "none":
        return None
    schemas = dict(map(_signature, tools))
    parallel = body.get("parallel_tool_calls") is not False and not field(choice, "disable_parallel_tool_use")
    if kind in (None, "auto"):
        return ToolUse(schemas, required=False, parallel=parallel)
    if kind in ("required", "any"):
        return ToolUse(schemas, required=True, parallel=parallel)
    name = field(choice, "name") or field(field(choice, "function"), "name")
    if kind not in ("function", "tool") or not isinstance(name, str):
        raise InvalidRequest("tool_choice is auto, none, required, or names one of the tools", param="tool_choice")
    if name not in schemas:
        raise InvalidRequest(f"tool_choice names {name!r}, which is none of the tools", param="tool_choice")
    return ToolUse({name: schemas[name]}, required=True, parallel=False)


def check_one_form(grammar: Grammar | None, tools: ToolUse | None, param: str) -> None:
    """Refuse an answer that is to be JSON and may be a call as well: which of them it is could not be told."""
    if grammar is not None and tools is not None:
        raise InvalidRequest(
            f"the embedded engine takes {param} or tools, not both: set tool_choice to none", param=param
        )


def _signature(tool: JsonObject) -> tuple[str, JsonObject]:
    """A tool's name and the schema of its parameters, of a tool in chat's form."""
    function = field(tool, "function")
    name, schema = field(function, "name"), field(function, "parameters")
    if tool.get("type") != "function" or not isinstance(name, str) or not name:
        raise InvalidRequest("the embedded engine knows tools of type function, each with a name", param="tools")
    return name, {**_ANY_OBJECT, **schema} if isinstance(schema, dict) else _ANY_OBJECT
