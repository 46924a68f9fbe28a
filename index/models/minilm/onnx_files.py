"""A cache of built ONNX graphs in files, which load in milliseconds.

In the name `KIND-SOURCE-CONTENT.onnx`, SOURCE is a digest of weights and code, and CONTENT is a digest of the file. Damaged
files are replaced. Processes may share a folder.
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

from kvproxy.index.disable_usage_reports import disable_usage_reports
from kvproxy.index.models.minilm.graph_builder import code_digest, int8_test_graph
from kvproxy.index.models.minilm.weights import file_digest

MAX_FILES = 4  # Of each kind. Two versions of kvproxy can share the folder.
_MAX_TEMPORARY_AGE = 3600.0  # Seconds.
_log = logging.getLogger("kvproxy")


class OnnxFiles:
    """Opens ONNX graphs in the first folder that has them. Missing graphs are built, and written to the first writable folder."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    def open(self, kind: str, source_digest: str, build: Callable[[], bytes], *, narrow_sums: bool = False) -> Any:
        """Return an ONNX Runtime session of a graph, for instance of the kind `verifier`. Without a file, `build` creates it.

        For `narrow_sums`, see `open_session`.
        """
        name = f"{kind}-{source_digest}"
        for folder in self._folders:
            session = _open_intact_file(folder, name, narrow_sums)
            if session is not None:
                return session
        graph = build()
        for folder in self._folders:
            try:
                file = _write(folder, name, graph)
                _delete_old_files(folder, kind)
                return open_session(str(file), narrow_sums=narrow_sums)
            except Exception as error:
                _log.debug("cannot store a graph in %s: %s", folder, error)
        return open_session(graph, narrow_sums=narrow_sums)


def default_onnx_files(data_folder: Path | None = None) -> OnnxFiles:
    """Return the files in the user's cache folder, or in the data folder if the cache folder is not writable."""
    import platformdirs

    folders = [platformdirs.user_cache_path("kvproxy"), *([data_folder] if data_folder is not None else [])]
    return OnnxFiles([folder / "graphs" for folder in folders])


def content_digest(parts: Mapping[str, np.ndarray], *texts: str) -> str:
    digest = hashlib.sha256(repr(texts).encode())
    for name in sorted(parts):
        array = np.ascontiguousarray(parts[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def _open_intact_file(folder: Path, name: str, narrow_sums: bool) -> Any:
    for file in folder.glob(f"{name}-*.onnx"):
        try:
            if file_digest(file) == file.stem.rsplit("-", 1)[-1]:
                return open_session(str(file), narrow_sums=narrow_sums)
            _log.warning("%s is damaged and is built again", file)
            file.unlink()
        except Exception as error:
            _log.debug("cannot open %s: %s", file, error)
    return None


def _write(folder: Path, name: str, graph: bytes) -> Path:
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


def _delete_old_files(folder: Path, kind: str) -> None:
    files: list[tuple[float, Path]] = []
    for file in folder.glob(f"{kind}-*"):
        with contextlib.suppress(OSError):
            files.append((file.stat().st_mtime, file))
    finished = sorted((age, file) for age, file in files if file.suffix == ".onnx")
    latest = time.time() - _MAX_TEMPORARY_AGE
    abandoned = [(age, file) for age, file in files if file.suffix == ".part" and age < latest]
    for _, file in finished[:-MAX_FILES] + abandoned:
        with contextlib.suppress(OSError):
            file.unlink()


def computes_int8_exactly(files: OnnxFiles, *, narrow_sums: bool = False) -> bool:
    """Whether this processor multiplies the largest int8 values exactly; for `narrow_sums`, see `open_session`.

    x86 processors without VNNI add two products in 16 bits, which saturate, unless ONNX Runtime selects exact products.
    """
    probe = files.open("probe", code_digest()[:16], int8_test_graph, narrow_sums=narrow_sums)
    product = probe.run(None, {"tokens": np.full((1, 1, 2), 255, np.float32)})[0].item()
    return bool(product == 2 * 255 * 127)


def open_session(model: bytes | str, *, narrow_sums: bool = False) -> Any:
    """Open a thread-safe session of an ONNX file, given as a path or as bytes. It computes on the calling thread.

    `narrow_sums`: two adjacent int8 products may be summed in 16 bits on x86 processors without VNNI. This is also faster on
    processors with VNNI, for which ONNX Runtime would otherwise select kernels without it.
    """
    disable_usage_reports()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The arena never returns memory, and is not faster.
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.x64quantprecision", "0" if narrow_sums else "1")
    # The fused node is three times slower than the two nodes.
    slow = ["SkipLayerNormFusion"]
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=slow)
