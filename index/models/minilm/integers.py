"""Whether this processor computes 8-bit products exactly."""

import numpy as np

from kvproxy.index.models.minilm.files import GraphFiles
from kvproxy.index.models.minilm.graph import builder, probe_graph


def keeps_integers(files: GraphFiles) -> bool:
    """Return whether products of the largest values are exact.

    x86 processors without VNNI add two products in 16 bits, which saturates. ONNX Runtime documents this for AVX2.
    """
    largest = np.full((1, 1, 2), 255, np.float32)
    product = files.open("probe", builder()[:16], probe_graph).run(None, {"tokens": largest})[0].item()
    return bool(product == 2 * 255 * 127)
