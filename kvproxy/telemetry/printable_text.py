"""Escapes characters that a terminal or a log would interpret instead of showing them."""

# C0 and C1 controls could move the cursor or rename the window; bidirectional controls and separators reorder or split a line.
_BIDIRECTIONAL = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LATER = (*range(0x7F, 0xA0), *_BIDIRECTIONAL, 0x2028, 0x2029)
# Bytes of file names and arguments that are not UTF-8, as Python decodes them; no file in UTF-8 can contain them.
_BYTES = {code: f"\\x{code - 0xDC00:02x}" for code in range(0xDC80, 0xDD00)}
_ESCAPES = _BYTES | {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in (*range(0x20), *_LATER)}
_LINE_ESCAPES = {code: text for code, text in _ESCAPES.items() if code != ord("\n")}
_CELL_ESCAPES = {code: text for code, text in _ESCAPES.items() if chr(code) not in "\n\r\t"}
_TEXT_ESCAPES = {code: text for code, text in _ESCAPES.items() if chr(code) not in "\n\t"}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in (*_LATER, *_BYTES)}


def escape_controls(text: str) -> str:
    # A translation takes ten times as long as the test.
    return text if text.isprintable() else text.translate(_ESCAPES)


def escape_bytes(text: str) -> str:
    """Escape bytes that are not UTF-8."""
    return text.translate(_BYTES)


def escape_text(text: str) -> str:
    """Escape controls in a text of several lines, which may have tabs."""
    return text.replace("\r\n", "\n").translate(_TEXT_ESCAPES)


def escape_cell(text: str) -> str:
    """Escape controls in a cell of CSV, which may have line breaks and tabs."""
    return text.translate(_CELL_ESCAPES)


def escape_lines(text: str) -> str:
    """Escape all controls but line breaks, and indent all lines but the first, so that a text cannot imitate another line."""
    return text if text.isprintable() else text.translate(_LINE_ESCAPES).replace("\n", "\n  ")


def escape_json_controls(document: str) -> str:
    """Escape the controls that JSON permits in strings."""
    return document.translate(_JSON_ESCAPES)
