"""Opens the built-in verifier of an embedder's languages."""

from pathlib import Path

from kvproxy.index.models.e5 import NAME
from kvproxy.index.models.minilm.onnx_files import default_onnx_files
from kvproxy.index.models.verifier import Verifier
from kvproxy.index.models.verifier.built_in import BuiltInVerifier
from kvproxy.index.models.verifier.multilingual import MultilingualVerifier


def open_built_in(embedder: str | None, data_folder: Path | None) -> Verifier:
    english = BuiltInVerifier.load(embedder, files=default_onnx_files(data_folder))
    return MultilingualVerifier(english) if (embedder or "").startswith(NAME) else english
