"""Runs a graph of `graph.py` in ONNX Runtime."""

from functools import cache
from typing import Any

import numpy as np

from kvproxy.index.minilm.graph import probe_graph


def open_session(model: bytes) -> Any:
    """A session that computes on the thread that calls it; any number of threads may."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@cache
def keeps_integers() -> bool:
    """Whether this processor's 8-bit products are exact.

    x86 without VNNI adds two of them in 16 bits and cuts off what does not fit, as ONNX Runtime documents for AVX2.
    """
    largest = np.full((1, 1, 2), 255, np.float32)
    product = open_session(probe_graph()).run(None, {"tokens": largest})[0].item()
    return bool(product == 2 * 255 * 127)
