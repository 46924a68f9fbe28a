"""Replaces files that only their owner may read."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_private_file(file: Path, content: bytes) -> None:
    """Write a file durably, so that a crash leaves the old or the new content. Raises OSError."""
    with private_replacement(file, content):
        pass


@contextmanager
def private_replacement(file: Path, content: bytes) -> Iterator[None]:
    """Write the content durably beside a file, and replace the file at the end, unless the block raises. Raises OSError."""
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.stem}-") as folder:
        written = Path(folder) / file.name
        with open(os.open(written, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        yield
        os.replace(written, file)
