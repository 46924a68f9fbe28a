"""Sessions of ONNX Runtime."""

from typing import Any

from kvproxy.index.usage_reports import disable_usage_reports


def open_session(model: bytes | str) -> Any:
    """Open a session that computes on the calling thread. Several threads may use it.

    Args:
        model: a serialised graph, or its path, which needs less memory.
    """
    disable_usage_reports()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The arena never returns memory, and is not faster.
    options.enable_cpu_mem_arena = False
    # The fusion of Add and LayerNormalization is three times slower than the two nodes.
    slow = ["SkipLayerNormFusion"]
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=slow)
