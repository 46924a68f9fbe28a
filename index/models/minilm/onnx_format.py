"""Writes the part of the ONNX format that `graph_builder.py` needs, without the package `onnx` (27 MB).

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from functools import cache
from typing import Any

import numpy as np

FLOAT = 1
_TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.int8): 3, np.dtype(np.int64): 7}
_IR_VERSION = 11
# Number and type of each field of each message; `*` marks a repeated field.
_MESSAGES = {
    "Model": {"ir_version": (1, "int64"), "graph": (7, "Graph"), "opset_import": (8, "Opset*")},
    "Opset": {"domain": (1, "string"), "version": (2, "int64")},
    "Graph": {
        "node": (1, "Node*"),
        "name": (2, "string"),
        "initializer": (5, "Tensor*"),
        "input": (11, "ValueInfo*"),
        "output": (12, "ValueInfo*"),
    },
    "Node": {
        "input": (1, "string*"),
        "output": (2, "string*"),
        "op_type": (4, "string"),
        "attribute": (5, "Attribute*"),
        "domain": (7, "string"),
    },
    "Attribute": {"name": (1, "string"), "f": (2, "float"), "i": (3, "int64"), "type": (20, "int32")},
    "Tensor": {"dims": (1, "int64*"), "data_type": (2, "int32"), "name": (8, "string"), "raw_data": (9, "bytes")},
    "ValueInfo": {"name": (1, "string"), "type": (2, "Type")},
    "Type": {"tensor_type": (1, "TensorType")},
    "TensorType": {"elem_type": (1, "int32"), "shape": (2, "Shape")},
    "Shape": {"dim": (1, "Dimension*")},
    "Dimension": {"dim_value": (1, "int64"), "dim_param": (2, "string")},
}


@cache
def _message(name: str) -> Any:
    return _classes()[f"kvproxy.onnx.{name}"]


@cache
def _classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="kvproxy_onnx.proto", package="kvproxy.onnx", syntax="proto2")
    for message, fields in _MESSAGES.items():
        description = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            kind = kind.removesuffix("*")
            added = description.field.add(name=name, number=number, label=label)
            if kind in _MESSAGES:
                added.type, added.type_name = field.TYPE_MESSAGE, f".kvproxy.onnx.{kind}"
            else:
                added.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes: dict[str, Any] = message_factory.GetMessageClassesForFiles([file.name], pool)
    return classes


def tensor_proto(name: str, value: np.ndarray) -> Any:
    return _message("Tensor")(name=name, dims=value.shape, data_type=_TYPES[value.dtype], raw_data=value.tobytes())


def node_proto(
    operator: str, inputs: list[str], outputs: list[str], domain: str, attributes: dict[str, int | float]
) -> Any:
    kind = _message("Attribute")
    return _message("Node")(
        op_type=operator,
        input=inputs,
        output=outputs,
        domain=domain,
        attribute=[
            kind(name=name, f=value, type=1) if isinstance(value, float) else kind(name=name, i=value, type=2)
            for name, value in sorted(attributes.items())
        ],
    )


def value_info_proto(name: str, shape: list[int | str]) -> Any:
    size = _message("Dimension")
    dimensions = [size(dim_param=each) if isinstance(each, str) else size(dim_value=each) for each in shape]
    kind = _message("TensorType")(elem_type=FLOAT, shape=_message("Shape")(dim=dimensions))
    return _message("ValueInfo")(name=name, type=_message("Type")(tensor_type=kind))


def model_proto(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any], opsets: dict[str, int]
) -> bytes:
    graph = _message("Graph")(name="minilm", node=nodes, input=inputs, output=outputs, initializer=constants)
    versions = [_message("Opset")(domain=domain, version=version) for domain, version in opsets.items()]
    written: bytes = _message("Model")(ir_version=_IR_VERSION, opset_import=versions, graph=graph).SerializeToString()
    return written
