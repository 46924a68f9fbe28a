"""Files that commands read and write; `-` is standard input."""

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from kvproxy.errors import InvalidRequest, KvproxyError, NotFound
from kvproxy.extras import require


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


def write_parts(file: Path, parts: Iterable[bytes]) -> None:
    """Write a file as a whole or not at all: the old one stays until the new one is complete.

    A link is followed. A pipe or a device gets the parts as they come; it is never replaced by a file. A new file can be read
    by its owner alone, and an old one keeps its mode.

    Raises:
        KvproxyError: it cannot be written.
    """
    with writing(file):
        before = _status(file)
        if before is not None and not _is_plain(file, before):
            with open(os.open(file, os.O_WRONLY | os.O_NOCTTY), "wb") as out:
                out.writelines(parts)
        else:
            _replace(Path(os.path.realpath(file)), parts, None if before is None else stat.S_IMODE(before.st_mode))


PICTURES = (".png", ".svg", ".pdf")
"""The endings of the pictures that can be drawn."""


def check_place(file: Path | None, endings: tuple[str, ...] = ()) -> None:
    """Fail now where a file could not be written later, after long work.

    Args:
        file: None where nothing will be written.
        endings: one of which it must have; none where any will do.

    Raises:
        InvalidRequest: its folder is missing or cannot be written to, it is a folder itself, or its ending is another.
        SettingsError: matplotlib is required and missing.
    """
    if file is None:
        return
    folder = file.parent
    if not folder.is_dir():
        raise InvalidRequest(f"cannot write {file}: there is no folder {folder}; make it first")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise InvalidRequest(f"cannot write {file}: name a file in a folder that can be written to")
    if endings and file.suffix.lower() not in endings:
        raise InvalidRequest(f"cannot draw {file}: its name must end in {', '.join(endings[:-1])} or {endings[-1]}")
    if endings == PICTURES:
        require("matplotlib")


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Tell what keeps a file from being written in a sentence.

    Raises:
        KvproxyError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise KvproxyError(f"cannot write {file}: {error.strerror}") from None


def _status(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except FileNotFoundError:
        return None


def _is_plain(file: Path, status: os.stat_result) -> bool:
    # /dev/stdout may lead to a file that a shell goes on writing to.
    return stat.S_ISREG(status.st_mode) and not str(file.absolute()).startswith(("/dev/", "/proc/"))


def _replace(file: Path, parts: Iterable[bytes], mode: int | None) -> None:
    # A name that nobody can have put a link at.
    handle, partial = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:100]}.")
    try:
        with open(handle, "wb") as out:
            if mode is not None:
                os.fchmod(handle, mode)
            out.writelines(parts)
            out.flush()
            os.fsync(handle)
        os.replace(partial, file)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
