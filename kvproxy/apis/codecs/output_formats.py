from dataclasses import dataclass

from kvproxy.apis.json import Json, JsonMap, JsonObject, dumps, field
from kvproxy.errors import InvalidRequest
from kvproxy.generation import Grammar

_ANY_OBJECT: JsonObject = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that a response may call.

    Attributes:
        schemas: JSON schema of the parameters, by the name of the tool.
        required: whether the response must call a tool; otherwise it may be text.
    """

    schemas: dict[str, JsonObject]
    required: bool
    parallel: bool = True


def read_constraints(
    body: JsonMap, tools: tuple[JsonObject, ...], json_format: Json, param: str
) -> tuple[Grammar | None, ToolUse | None]:
    """Return the grammar of a JSON response, and the tools that the response may call; each is None if it is not requested.

    `json_format` is the value of the field `param`. Raises InvalidRequest if a JSON format and tools are requested.
    """
    grammar, tool_use = read_json_format(json_format, param), _read_tool_use(body, tools)
    if grammar is not None and tool_use is not None:
        raise InvalidRequest(
            f"the embedded engine supports {param} or tools, not both: set tool_choice to none", param=param
        )
    return grammar, tool_use


def read_json_format(kind: Json, param: str) -> Grammar | None:
    name = None if kind is None else field(kind, "type")
    if kind is None or name == "text":
        return None
    if name == "json_object":
        return Grammar("json_schema", dumps(_ANY_OBJECT).decode())
    if name != "json_schema":
        raise InvalidRequest(
            f"{param}.type must be text, json_object or json_schema for the embedded engine", param=param
        )
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
        raise InvalidRequest(
            "the embedded engine supports tools of type function only, each with a name", param="tools"
        )
    return name, {**_ANY_OBJECT, **schema} if isinstance(schema, dict) else _ANY_OBJECT
