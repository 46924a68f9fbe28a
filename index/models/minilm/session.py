"""Opens sessions of ONNX Runtime."""

from typing import Any

from kvproxy.index.usage_reports import disable_usage_reports


def open_session(model: bytes | str) -> Any:
    """A session that computes on the thread that calls it; any number of threads may.

    Args:
        model: a serialised graph, or the path of one. Reading from a path holds less memory than bytes do.
    """
    disable_usage_reports()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The arena never gives memory back, and holds what the longest text needed. Without it a run takes as long.
    options.enable_cpu_mem_arena = False
    # It would join Add and LayerNormalization to a node that takes three times as long as the two.
    slow = ["SkipLayerNormFusion"]
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=slow)
