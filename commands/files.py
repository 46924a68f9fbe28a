"""Files that commands read; `-` is standard input."""

import sys
from pathlib import Path

from kvproxy.errors import InvalidRequest, NotFound


def read_bytes(file: Path) -> bytes:
    """The whole content of a file.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it cannot be read.
    """
    if str(file) == "-":
        return sys.stdin.buffer.read()
    if not file.exists():
        raise NotFound(f"no file {file}")
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror}") from None


def read_text(file: Path) -> str:
    """The whole content of a file of text.

    Raises:
        NotFound, InvalidRequest: as for `read_bytes`, or it is no UTF-8.
    """
    try:
        return read_bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file} is no UTF-8 text") from None
