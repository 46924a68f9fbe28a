"""Text of other people's making at a terminal: what would steer the terminal is shown, and not obeyed."""

import json
from typing import Any

# C0 and C1 controls: an escape sequence in a prompt could move the cursor, rename the window, or worse.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))}
_IN_JSON = {code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0))}


def shown(text: str) -> str:
    """A text with its control characters written out; line ends and tabs too."""
    return text.translate(_CONTROLS)


def json_text(value: Any) -> str:
    """JSON for people and scripts, with every control character escaped."""
    return json.dumps(value, indent=2, ensure_ascii=False).translate(_IN_JSON)
