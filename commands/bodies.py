"""Request bodies: which API one is for, who sends it, and the chat request that a prompt on the command line means."""

import json
from pathlib import Path
from typing import Any, Literal

import typer

from kvproxy.commands.files import read_text
from kvproxy.errors import InvalidRequest

Api = Literal["chat", "completions", "messages", "responses", "embeddings"]
PATHS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
"""The APIs whose answers are cached, by the names that stored responses carry."""

# Fields that only one of two APIs with the same main field has.
_OF_MESSAGES = {"system", "stop_sequences", "thinking", "anthropic_version", "anthropic_beta"}
_MESSAGES_BLOCKS = {"tool_use", "tool_result", "image", "document", "thinking"}
_OF_EMBEDDINGS = {"dimensions", "encoding_format"}
_OF_RESPONSES = {"instructions", "max_output_tokens", "previous_response_id", "reasoning", "store", "text", "tools"}


def api_of(body: dict[str, Any]) -> Api | None:
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
    items = body["input"]
    is_turns = isinstance(items, list) and any(isinstance(item, dict) for item in items)
    return "responses" if is_turns or _OF_RESPONSES & set(body) else None


def _is_for_messages(body: dict[str, Any]) -> bool:
    if _OF_MESSAGES & set(body):
        return True
    tools = body["tools"] if isinstance(body.get("tools"), list) else []
    if any(isinstance(tool, dict) and "input_schema" in tool for tool in tools):
        return True
    turns = body["messages"] if isinstance(body["messages"], list) else []
    contents = [turn["content"] for turn in turns if isinstance(turn, dict) and isinstance(turn.get("content"), list)]
    return any(
        isinstance(block, dict) and block.get("type") in _MESSAGES_BLOCKS for content in contents for block in content
    )


def credentials(api: Api, api_key: str | None) -> dict[str, str]:
    """Headers with a key, as the clients of an API send it; stored responses are kept apart by them."""
    if api == "messages":
        return {"anthropic-version": "2023-06-01"} | ({"x-api-key": api_key} if api_key else {})
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def read_body(prompt: str | None, system: str | None, file: Path | None) -> dict[str, Any]:
    """The request that a command line describes: a chat request with a prompt, or the body in a file.

    Raises:
        BadParameter: not exactly one of prompt and file is given, or a system prompt goes with a file.
        NotFound, InvalidRequest: the file cannot be read.
    """
    if (prompt is None) == (file is None):
        raise typer.BadParameter("give a prompt, or --file with a request")
    if file is None:
        before = [{"role": "system", "content": system}] if system else []
        return {"messages": [*before, {"role": "user", "content": prompt}]}
    if system is not None:
        raise typer.BadParameter("--system goes with a prompt: with --file, write it into the file")
    try:
        body = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{file} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"{file} must hold one request, a JSON object")
    return body
