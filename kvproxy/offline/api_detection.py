from kvproxy.apis.api import ApiName
from kvproxy.apis.json import JsonMap, as_list, field, objects

_MESSAGES_FIELDS = {"system", "stop_sequences", "thinking", "anthropic_version", "anthropic_beta"}
_MESSAGES_BLOCKS = {"tool_use", "tool_result", "image", "document", "thinking"}
_EMBEDDINGS_FIELDS = {"dimensions", "encoding_format"}
_RESPONSES_FIELDS = {
    "instructions", "max_output_tokens", "previous_response_id", "reasoning", "store", "text", "tools",
}  # fmt: skip


def detect_api(body: JsonMap) -> ApiName | None:
    """Return the API of a body; None if the body fits several APIs, for example if it only has `input`."""
    if "messages" in body:
        return "messages" if _is_for_messages(body) else "chat"
    if "prompt" in body:
        return "completions"
    if "input" not in body:
        return None
    if _EMBEDDINGS_FIELDS & set(body):
        return "embeddings"
    has_turns = bool(objects(body["input"]))
    return "responses" if has_turns or _RESPONSES_FIELDS & set(body) else None


def _is_for_messages(body: JsonMap) -> bool:
    if _MESSAGES_FIELDS & set(body):
        return True
    if any("input_schema" in tool for tool in objects(body.get("tools"))):
        return True
    contents = [turn["content"] for turn in objects(body["messages"]) if isinstance(turn.get("content"), list)]
    return any(field(block, "type") in _MESSAGES_BLOCKS for content in contents for block in as_list(content))
