"""Finished graphs kept in files, so that a start reads them in milliseconds and need not build them.

A file's name holds two digests, `KIND-MADE_FROM-CONTENT.onnx`: what the graph was made from (weights and the code that
builds), and its bytes. So a file of other weights is never taken, and a damaged one is noticed and made again.
Files are derived: whoever deletes them costs the next start some time, and nothing else. Any number of processes may
share a folder, and a folder that cannot be written to only costs time.
"""

import contextlib
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.models.minilm.session import open_session
from kvproxy.index.models.minilm.weights import file_digest

KEPT = 4
"""Files of one kind that stay in a folder, so that two versions of kvproxy do not delete each other's."""
_ABANDONED = 3600.0  # Seconds after which nobody is still writing a temporary file.
_log = logging.getLogger("kvproxy")


class GraphFiles:
    """Opens graphs from files, and writes those that are missing.

    Args:
        folders: where to look, in this order. The first that can be written to gets new files. None are needed.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    def open(self, kind: str, made_from: str, build: Callable[[], bytes]) -> Any:
        """An ONNX Runtime session of a graph.

        Args:
            kind: starts the file's name.
            made_from: digest of everything that `build` depends on.
            build: makes the graph if no file holds it.
        """
        name = f"{kind}-{made_from}"
        for folder in self._folders:
            session = _from_file(folder, name)
            if session is not None:
                return session
        graph = build()
        for folder in self._folders:
            try:
                file = _write(folder, name, graph)
                _tidy(folder, kind)
                return open_session(str(file))
            except Exception as error:
                _log.debug("cannot keep a graph in %s: %s", folder, error)
        return open_session(graph)


def graph_files(data: Path | None = None) -> GraphFiles:
    """The graphs in the user's cache folder and, where that cannot be used, in the folder of all state, if one is given."""
    import platformdirs

    folders = [platformdirs.user_cache_path("kvproxy"), *([data] if data is not None else [])]
    return GraphFiles([folder / "graphs" for folder in folders])


def digest_of(parts: Mapping[str, np.ndarray], *texts: str) -> str:
    """16 hex digits of tensors under their names, and of texts."""
    digest = hashlib.sha256(repr(texts).encode())
    for name in sorted(parts):
        array = np.ascontiguousarray(parts[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def _from_file(folder: Path, name: str) -> Any:
    """A session from a sound file; None if there is none. A damaged file is removed."""
    for file in folder.glob(f"{name}-*.onnx"):
        try:
            if file_digest(file) == file.stem.rsplit("-", 1)[-1]:
                return open_session(str(file))
            _log.warning("%s is damaged and is made again", file)
            file.unlink()
        except Exception as error:
            # Another process may have removed the file meanwhile; the graph can be built whatever it was.
            _log.debug("cannot open %s: %s", file, error)
    return None


def _write(folder: Path, name: str, graph: bytes) -> Path:
    """Write a file; it gets its final name once it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    number, part = tempfile.mkstemp(prefix=f"{name}-", suffix=".part", dir=folder)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(graph)
            file.flush()
            os.fsync(file.fileno())
        return Path(part).replace(folder / f"{name}-{file_digest(Path(part))}.onnx")
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _tidy(folder: Path, kind: str) -> None:
    """Remove the oldest files of a kind, and temporary files whose writers died."""
    files: list[tuple[float, Path]] = []
    for file in folder.glob(f"{kind}-*"):
        with contextlib.suppress(OSError):
            files.append((file.stat().st_mtime, file))
    finished = sorted((age, file) for age, file in files if file.suffix == ".onnx")
    abandoned = [(age, file) for age, file in files if file.suffix == ".part" and age < time.time() - _ABANDONED]
    for _, file in finished[:-KEPT] + abandoned:
        with contextlib.suppress(OSError):
            file.unlink()
