"""Runs graphs in ONNX Runtime."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

_CORES = 2
"""That compute one input together where there are so many."""


class Session:
    """A graph that is ready to run. Any number of threads may run it.

    Args:
        model: a serialised graph, or the path of one. Reading from a path holds less memory than bytes do.
    """

    def __init__(self, model: bytes | str) -> None:
        self._one = _open(model, 1)
        self._several = _open(model, _CORES) if (os.cpu_count() or 1) >= _CORES else self._one

    def run(self, inputs: Mapping[str, np.ndarray], *, alone: bool = False) -> np.ndarray:
        """The graph's output, the same either way.

        Args:
            alone: nothing else is computed meanwhile, so it is computed on two cores, in two thirds of the time. Otherwise on the
                thread that calls: two inputs on two threads are done sooner than one after the other on both.
        """
        found: np.ndarray = (self._several if alone else self._one).run(None, inputs)[0]
        return found


def _open(model: bytes | str, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # A second thread looks out for work while a run lasts. After it, it would take the core from others.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    # The arena never gives memory back, and holds what the longest text needed. Without it a run takes as long.
    options.enable_cpu_mem_arena = False
    # It would join Add and LayerNormalization to a node that takes three times as long as the two.
    slow = ["SkipLayerNormFusion"]
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=slow)
