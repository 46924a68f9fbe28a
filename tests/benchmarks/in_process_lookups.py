"""Embeds questions and scores pairs in this process, and counts their instructions; see `lookup_cost.py`.

python -m tests.benchmarks.in_process_lookups LIBRARY < JSON with `questions` and `pairs`
"""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

from kvproxy.index.models.minilm.embedder import MiniLMEmbedder
from kvproxy.index.models.minilm.onnx_files import OnnxFiles, default_onnx_files, open_session
from kvproxy.index.models.verifier.built_in import BuiltInVerifier


class _WideSums(OnnxFiles):
    def open(self, kind: str, source_digest: str, build: Callable[[], bytes], **options: Any) -> Any:
        return open_session(build())


def main() -> None:
    switches, given = ctypes.CDLL(sys.argv[1]), json.load(sys.stdin)
    files = default_onnx_files()
    narrow, wide = MiniLMEmbedder(int8=True, files=files), MiniLMEmbedder(int8=True, files=_WideSums([]))
    verifier = BuiltInVerifier.load(files=files)
    first, *pairs = [(one, other) for one, other in given["pairs"]]
    works: list[Callable[[], object]] = [
        lambda: [narrow.embed([question]) for question in given["questions"]],
        lambda: [wide.embed([question]) for question in given["questions"]],
        lambda: [verifier.score([pair]) for pair in pairs],
    ]
    narrow.embed(["What is a block?"])
    wide.embed(["What is a block?"])
    verifier.score([first])
    for work in works:
        switches.start()
        work()
        switches.stop()


if __name__ == "__main__":
    main()
