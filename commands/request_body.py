"""Request bodies: where they go, who sends them, and the chat request that a prompt on the command line means."""

import json
from pathlib import Path
from typing import Any, Literal

import typer

from kvproxy.commands.files import read_text
from kvproxy.errors import InvalidRequest

# Written out: to import what handles the APIs would cost every command its time.
ApiName = Literal["chat", "completions", "messages", "responses", "embeddings"]
PATHS: dict[ApiName, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
"""The APIs whose answers are cached, by the names that stored responses carry."""


def credentials(api: ApiName, api_key: str | None) -> dict[str, str]:
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
