"""Reads and writes the files that options name; `-` is standard input."""

import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kvproxy.analyse.charts import Chart, save
from kvproxy.analyse.compressed_files import DamagedFile, read_decompressed
from kvproxy.analyse.simulate.file_kinds import describe_binary
from kvproxy.errors import InvalidRequest, NotFound, StorageFailed, file_error
from kvproxy.optional_packages import require_package

_STDOUT = "-", "/dev/stdout"
OTHER_FILE = "name a file in a writable folder"
_PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def read_bytes(file: Path) -> bytes:
    """Read a file. Raises NotFound or InvalidRequest."""
    if str(file) == "-":
        return sys.stdin.buffer.read()
    if not file.exists():
        raise NotFound(f"no file {file}: check the path")
    try:
        return file.read_bytes()
    except OSError as error:
        raise file_error("read", file, error, "give another file") from None


def shown_name(file: Path) -> Path:
    """Return the name of a file in messages: for `-` it is stdin."""
    return Path("stdin") if str(file) == "-" else file


def stdin_or_path(file: Path) -> Path:
    """Return the path to open. For `-` it is the path of stdin, which can be read only once."""
    return Path("/dev/stdin") if str(file) == "-" else file


@contextlib.contextmanager
def reread(file: Path) -> Iterator[Path]:
    """Yield the path of a file that can be read several times: a copy of stdin (`-`) or a pipe, else the file itself."""
    if str(file) != "-" and not file.is_fifo():
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="kvproxy-") as folder:
        copy = Path(folder) / "stdin"
        with contextlib.ExitStack() as files:
            source = sys.stdin.buffer if str(file) == "-" else files.enter_context(file.open("rb"))
            shutil.copyfileobj(source, files.enter_context(copy.open("wb")))
        try:
            yield copy
        except InvalidRequest as error:
            error.message = error.message.replace(str(copy), str(shown_name(file)))
            raise


def read_text(path: Path, name: Path | None = None) -> str:
    """Read a UTF-8 file, which may be compressed. `name` is its name in errors. Raises NotFound or InvalidRequest."""
    file = shown_name(name or path)
    try:
        content = read_decompressed(io.BytesIO(read_bytes(path)))
    except DamagedFile as error:
        raise InvalidRequest(f"cannot decompress {file}: {error}") from None
    # A small database may be valid UTF-8.
    if content.startswith(b"SQLite format 3"):
        raise InvalidRequest(
            f"{file} is a database: simulate and log read a journal, cache export a store; kvproxy savings --ledger --data"
            f" {file.parent} names lost prefixes by cause, and this command reads the stored prompts of a journal from kvproxy"
            f" log export - --format requests --data {file.parent}"
        )
    if (kind := describe_binary(content)) is not None:
        raise InvalidRequest(f"{file} {kind}")
    return content.decode("utf-8-sig")


def write_chunks(file: Path, chunks: Iterable[bytes]) -> None:
    """Replace a file atomically; `-` is stdout. Raises KvproxyError.

    Links are followed. An existing file keeps its mode; only the owner can read a new file. Chunks are written to a pipe as
    they arrive.
    """
    with explain_write_errors(file):
        if str(file) == "-":
            sys.stdout.buffer.writelines(chunks)
            sys.stdout.buffer.flush()
            return
        with contextlib.suppress(FileNotFoundError):
            file.stat()  # A loop of links is an error, and must not be replaced.
        if _is_device(file):
            with open(os.open(file, os.O_WRONLY | os.O_NOCTTY), "wb") as out:
                out.writelines(chunks)
        else:
            _replace_file(Path(os.path.realpath(file)), chunks)


def _is_device(file: Path) -> bool:
    # /dev/stdout may be a regular file to which a shell continues to write.
    return str(file.absolute()).startswith(("/dev/std", "/dev/fd/", "/proc/")) or (file.exists() and not file.is_file())


def check_is_new(*files: Path | None) -> None:
    """Raise InvalidRequest for a file that exists. Standard output, pipes, and devices may be written."""
    for file in files:
        if file is not None and str(file) != "-" and file.exists() and not _is_device(file):
            raise InvalidRequest(f"{file} exists: name another file, or replace it with --force")


def check_writable(file: Path | None, suffixes: tuple[str, ...] = ()) -> None:
    """Check, before long work, that a file can be written. Do nothing for None.

    Args:
        suffixes: allowed suffixes; without any, all are allowed.

    Raises InvalidRequest if the folder is missing or the suffix is not allowed, and StorageFailed if it is read-only.
    """
    if file is None:
        return
    folder = file.parent
    if not folder.is_dir():
        raise _missing_folder(file)
    if file.is_dir():
        raise InvalidRequest(f"cannot write {file}: it is a folder, so {OTHER_FILE}")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise StorageFailed(f"cannot write {file}: {OTHER_FILE}")
    if suffixes and file.suffix.lower() not in suffixes:
        raise InvalidRequest(f"cannot write {file}: its name must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}")


def _missing_folder(file: Path) -> InvalidRequest:
    return InvalidRequest(f"cannot write {file}: create the folder {file.parent} first")


def checked_plot(file: Path | None) -> Path | None:
    """Check, before long work, that charts can be saved in a file. Raises as `check_writable`."""
    check_writable(file, _PLOT_SUFFIXES)
    if file is not None:
        require_package("matplotlib")
    return file


def save_charts(charts: Sequence[Chart], file: Path | None) -> None:
    if file is not None:
        with explain_write_errors(file):
            save(charts, file)


@contextlib.contextmanager
def explain_write_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) and str(file) in _STDOUT:
            # The command ends without a message, as after other output on stdout.
            raise
        if isinstance(error, FileNotFoundError) and not file.parent.is_dir():
            raise _missing_folder(file) from None
        raise file_error("write", file, error, OTHER_FILE) from None


def _replace_file(file: Path, chunks: Iterable[bytes]) -> None:
    # An unpredictable name cannot be a link of another user.
    handle, partial = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:100]}.")
    try:
        with open(handle, "wb") as out:
            if file.exists():
                shutil.copymode(file, partial)
            out.writelines(chunks)
            out.flush()
            os.fsync(handle)
        os.replace(partial, file)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
