"""Writes the part of the ONNX format that `graph_builder.py` needs, without the package `onnx` (27 MB).

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from functools import cache
from typing import Any

import numpy as np

_FLOAT = 1
_TYPES = {np.dtype(np.float32): _FLOAT, np.dtype(np.int8): 3, np.dtype(np.int64): 7}
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
def _model_class() -> Any:
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
    return message_factory.GetMessageClassesForFiles([file.name], pool)["kvproxy.onnx.Model"]


def tensor(name: str, value: np.ndarray) -> dict[str, Any]:
    return {"name": name, "dims": value.shape, "data_type": _TYPES[value.dtype], "raw_data": value.tobytes()}


def attribute(name: str, value: int | float) -> dict[str, Any]:
    return {"name": name} | ({"f": value, "type": 1} if isinstance(value, float) else {"i": value, "type": 2})


def value_info(name: str, shape: list[int | str]) -> dict[str, Any]:
    dimensions = [{"dim_param" if isinstance(size, str) else "dim_value": size} for size in shape]
    return {"name": name, "type": {"tensor_type": {"elem_type": _FLOAT, "shape": {"dim": dimensions}}}}


def model_bytes(graph: dict[str, Any], opsets: dict[str, int]) -> bytes:
    """Serialise a model. A dictionary of its fields (see `_MESSAGES`) represents each message."""
    versions = [{"domain": domain, "version": version} for domain, version in opsets.items()]
    model = _model_class()(ir_version=_IR_VERSION, opset_import=versions, graph=graph)
    serialised: bytes = model.SerializeToString()
    return serialised
