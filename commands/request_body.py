import json
from pathlib import Path
from typing import Any

import typer

from kvproxy.commands.files import read_text
from kvproxy.errors import InvalidRequest


def read_body(prompt: str | None, system: str | None, file: Path | None) -> dict[str, Any]:
    """Return a chat request with a prompt, or the request in a file.

    Raises:
        BadParameter: both a prompt and a file are given, or neither.
        NotFound, InvalidRequest: the file cannot be read.
    """
    if (prompt is None) == (file is None):
        raise typer.BadParameter("give a prompt, or --file with a request")
    if file is None:
        before = [{"role": "system", "content": system}] if system else []
        return {"messages": [*before, {"role": "user", "content": prompt}]}
    if system is not None:
        raise typer.BadParameter("--system needs a prompt: write the system prompt into the file instead")
    try:
        body = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{file} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"{file} must contain one request as a JSON object")
    return body
