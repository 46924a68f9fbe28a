"""Appends to a file of settings, or creates it; a failure leaves it as it was."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def appended(file: Path, text: str) -> Iterator[None]:
    """Append text to a file, which may be missing, and remove it again if this or the block fails. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    size = file.stat().st_size if file.exists() else None
    try:
        with file.open("a", encoding="utf-8") as out:
            out.write(text)
        yield
    except BaseException:
        with suppress(OSError):
            file.unlink() if size is None else os.truncate(file, size)
        raise
