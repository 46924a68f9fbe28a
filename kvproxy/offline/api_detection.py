"""Which API a body is for, told from its fields alone: for files and command lines that do not say."""

from kvproxy.apis.api import ApiName
from kvproxy.apis.json import JsonMap, as_list, field, objects

# Fields that only one of two APIs with the same main field has.
_OF_MESSAGES = {"system", "stop_sequences", "thinking", "anthropic_version", "anthropic_beta"}
_MESSAGES_BLOCKS = {"tool_use", "tool_result", "image", "document", "thinking"}
_OF_EMBEDDINGS = {"dimensions", "encoding_format"}
_OF_RESPONSES = {"instructions", "max_output_tokens", "previous_response_id", "reasoning", "store", "text", "tools"}


def api_of(body: JsonMap) -> ApiName | None:
    """The API that a body is for, by its fields.

    Returns:
        None where the fields do not tell: a body with only `input` may be for Responses or for embeddings.
    """
    if "messages" in body:
        return "messages" if _is_for_messages(body) else "chat"
    if "prompt" in body:
        return "completions"
    if "input" not in body:
        return None
    if _OF_EMBEDDINGS & set(body):
        return "embeddings"
    is_turns = bool(objects(body["input"]))
    return "responses" if is_turns or _OF_RESPONSES & set(body) else None


def _is_for_messages(body: JsonMap) -> bool:
    if _OF_MESSAGES & set(body):
        return True
    if any("input_schema" in tool for tool in objects(body.get("tools"))):
        return True
    contents = [turn["content"] for turn in objects(body["messages"]) if isinstance(turn.get("content"), list)]
    return any(field(block, "type") in _MESSAGES_BLOCKS for content in contents for block in as_list(content))
