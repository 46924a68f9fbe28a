"""Builds MiniLM as an ONNX graph. A run computes one text or one pair, so that its result does not depend on a batch.

The input is the sum of the embeddings of each token, from `weights.embed_tokens`. `activation_ranges` has the largest
activation of each input channel of each matrix. With it, the graph computes in int8 with SmoothQuant (arXiv 2211.10438): weights
are scaled per output channel, and activations once per run.

If you change the rounding, also change `embedder.INT8_NAME`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.models.minilm import onnx_format
from kvproxy.index.models.minilm.weights import EPSILON, HEADS, WIDTH, Weights, file_digest

# SmoothQuant's migration strength: the share of a channel's range that moves from the activations to the weights.
_SHARES = {"qkv": 0.65, "out": 0.65, "up": 0.65, "down": 0.6}
_RUNTIME = "com.microsoft"
_MAX_PAIR = 127  # Rounding adds up to 1.
Quantize = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Returns the int8 weights `[in, out]` and the scales `[out]` of a matrix `[out, in]`."""
# Read at import, because an upgrade can replace the file while a process still builds graphs with the earlier code.
_CODE_DIGEST = file_digest(Path(__file__))


def code_digest() -> str:
    return _CODE_DIGEST


class Graph:
    """Collects the nodes and constants of an ONNX graph. The methods that add to it return the names of the new values."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(onnx_format.tensor(name, np.asarray(value, order="C")))
        return name

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: int | float) -> str:
        return self.multi_output_node(operator, *inputs, parts=1, domain=domain, **attributes)[0]

    def multi_output_node(
        self, operator: str, *inputs: str, parts: int, domain: str = "", **attributes: int | float
    ) -> list[str]:
        outputs = [f"v{len(self.nodes)}_{part}" for part in range(parts)]
        fields = [onnx_format.attribute(name, value) for name, value in sorted(attributes.items())]
        node = {"op_type": operator, "input": inputs, "output": outputs, "domain": domain, "attribute": fields}
        self.nodes.append(node)
        return outputs

    def serialise(self, inputs: dict[str, list[int | str]], output: str, shape: list[int | str]) -> bytes:
        infos = [onnx_format.value_info(name, size) for name, size in inputs.items()]
        outputs = [onnx_format.value_info(output, shape)]
        graph = {"name": "minilm", "node": self.nodes, "input": infos, "output": outputs}
        return onnx_format.model_bytes(graph | {"initializer": self.constants}, {"": 23, _RUNTIME: 1})


def embedder_graph(weights: Weights, activation_ranges: Weights | None = None) -> bytes:
    """Build the embedder in ONNX: the input `tokens` comes from `embed_tokens`, and the output is a unit vector `[1, 384]`.

    With `activation_ranges` (see the module), the graph computes in int8; without it, in float32. Products of int8 may then be
    summed in 16 bits (see `quantize_in_pairs`).
    """
    graph = Graph()
    last = _encoder(graph, weights, activation_ranges, quantize_in_pairs)
    mean = graph.node("ReduceMean", last, graph.constant(np.array([1])), keepdims=0)
    unit = graph.node("Div", mean, graph.node("ReduceL2", mean, graph.constant(np.array([1]))))
    return graph.serialise({"tokens": [1, "length", WIDTH]}, unit, [1, WIDTH])


def verifier_graph(weights: Weights, activation_ranges: Weights | None = None) -> bytes:
    """Build the verifier (`training.verifier.network.CrossEncoder`), whose output is a logit `[1, 1]`.

    Its inputs are `tokens` from `embed_tokens`, and `sides` from `averaging_matrix`.
    """
    graph = Graph()
    last = _encoder(graph, weights, activation_ranges, _quantize)
    first = graph.node("Gather", last, graph.constant(np.array(0)), axis=1)
    means = graph.node("MatMul", "sides", last)
    one, other = (graph.node("Gather", means, graph.constant(np.array(side)), axis=1) for side in (0, 1))
    distance = graph.node("Abs", graph.node("Sub", one, other))
    features = graph.node("Concat", first, distance, graph.node("Mul", one, other), axis=1)
    hidden = graph.node("Gelu", _dense(graph, features, weights, "head.hidden"))
    logit = _dense(graph, hidden, weights, "head.score")
    return graph.serialise({"tokens": [1, "length", WIDTH], "sides": [1, 2, "length"]}, logit, [1, 1])


def _dense(graph: Graph, x: str, weights: Weights, name: str) -> str:
    matrix, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return graph.node("Gemm", x, graph.constant(matrix), graph.constant(bias), transB=1)


def _encoder(graph: Graph, weights: Weights, activation_ranges: Weights | None, quantize: Quantize) -> str:

    def constant(name: str) -> str:
        return graph.constant(weights[name])

    def norm(x: str, name: str) -> str:
        return graph.node(
            "LayerNormalization", x, constant(f"{name}.weight"), constant(f"{name}.bias"), axis=-1, epsilon=EPSILON
        )

    def multiply(x: str, name: str) -> str:
        return _multiply(graph, x, weights, name, activation_ranges, quantize)

    x = norm("tokens", "embeddings.norm")
    for number in range(sum(name.endswith(".qkv.weight") for name in weights)):
        layer = f"layer.{number}"
        joined = multiply(x, f"{layer}.qkv")
        heads = graph.multi_output_node("Split", joined, parts=3, axis=2, num_outputs=3)
        seen = graph.node("Attention", *heads, q_num_heads=HEADS, kv_num_heads=HEADS)
        x = norm(graph.node("Add", x, multiply(seen, f"{layer}.out")), f"{layer}.norm1")
        up = graph.node("Gelu", multiply(x, f"{layer}.up"))
        x = norm(graph.node("Add", x, multiply(up, f"{layer}.down")), f"{layer}.norm2")
    return x


def _multiply(
    graph: Graph, x: str, weights: Weights, name: str, activation_ranges: Weights | None, quantize: Quantize
) -> str:
    matrix, bias = weights[f"{name}.weight"], graph.constant(weights[f"{name}.bias"])
    if activation_ranges is None:
        return graph.node("Add", graph.node("MatMul", x, graph.constant(matrix.T)), bias)
    share = _SHARES[name.rsplit(".", 1)[-1]]
    wanted = np.maximum(activation_ranges[name].astype(np.float32), 1e-3) ** share
    channel = wanted / np.maximum(np.abs(matrix).max(axis=0), 1e-4) ** (1 - share)
    integers, scales = quantize(matrix * channel)
    constants = graph.constant(integers), graph.constant(scales)
    x = graph.node("Mul", x, graph.constant(1 / channel))
    if not name.endswith(".down"):
        return graph.node("DynamicQuantizeMatMul", x, *constants, "", bias, domain=_RUNTIME)
    most = graph.node("ReduceMax", graph.node("Abs", x), graph.constant(np.array([-1])), keepdims=1)
    product = graph.node("DynamicQuantizeMatMul", graph.node("Div", x, most), *constants, domain=_RUNTIME)
    return graph.node("Add", graph.node("Mul", product, most), bias)


def _quantize(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scales = np.abs(matrix).max(axis=1) / 127
    return np.round(matrix / scales[:, None]).astype(np.int8).T, scales.astype(np.float32)


def quantize_in_pairs(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize a matrix so that the magnitudes of two adjacent weights of a row, from the first one on, add up to at most 128.

    The fast kernels of x86 processors without VNNI sum the products of two adjacent weights and 8-bit activations in 16 bits,
    which the largest sum, 128 * 255, fits.
    """
    magnitudes = np.abs(matrix)
    scales = (magnitudes[:, 0::2] + magnitudes[:, 1::2]).max(axis=1) / _MAX_PAIR
    return np.round(matrix / scales[:, None]).astype(np.int8).T, scales.astype(np.float32)


def int8_test_graph() -> bytes:
    """Build a graph that multiplies `tokens`, an input of shape `[1, 1, 2]`, by the largest int8 weights.

    `computes_int8_exactly` runs it to find out whether the processor computes sums of int8 products exactly.
    """
    graph = Graph()
    weights, scales = graph.constant(np.full((2, 1), 127, np.int8)), graph.constant(np.ones(1, np.float32))
    product = graph.node("DynamicQuantizeMatMul", "tokens", weights, scales, domain=_RUNTIME)
    return graph.serialise({"tokens": [1, 1, 2]}, product, [1, 1, 1])
