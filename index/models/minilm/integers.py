"""Whether this processor computes 8-bit products exactly."""

import numpy as np

from kvproxy.index.models.minilm.files import GraphFiles
from kvproxy.index.models.minilm.graph import builder, probe_graph


def keeps_integers(files: GraphFiles) -> bool:
    """Try it with the largest values.

    x86 without VNNI adds two products in 16 bits and cuts off what does not fit, as ONNX Runtime documents for AVX2.
    """
    largest = np.full((1, 1, 2), 255, np.float32)
    product = files.open("probe", builder()[:16], probe_graph).run(None, {"tokens": largest})[0].item()
    return bool(product == 2 * 255 * 127)
