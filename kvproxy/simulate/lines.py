"""The lines of a trace file."""

import json
from pathlib import Path
from typing import Any

from kvproxy.simulate.errors import TraceError


def parse_line(path: Path, number: int, text: str) -> dict[str, Any]:
    """A line as an object.

    Raises:
        TraceError: it is none; the message names file and line.
    """
    try:
        line = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{path}, line {number}: not JSON ({error})") from None
    if not isinstance(line, dict):
        raise TraceError(f"{path}, line {number}: expected a JSON object")
    return line
