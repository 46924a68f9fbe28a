"""Adds LoRA adapters to a model's layers."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from kvproxy.engine.models.linear_layers import PackedLinear
from kvproxy.errors import ModelUnsupported

_UNSUPPORTED = {
    "use_dora": "it is a DoRA adapter",
    "modules_to_save": "it replaces whole layers",
    "alpha_pattern": "its scale differs between layers",
    "layer_replication": "it repeats layers",
    "fan_in_fan_out": "its matrices are transposed",
    "lora_bias": "it has biases",
}
# An adapter's matrices of a layer: A, `[rank, in]`, and B, `[out, rank]`, multiplied by the adapter's scale.
_Matrices = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    lora_id: int
    digest: str


class LoraManager:
    """Adds LoRA adapters to a model's layers through forward hooks. Tokens of one step may use different adapters."""

    def __init__(self, model: Any, folders: Mapping[str, Path]) -> None:
        self.by_name: dict[str, LoraAdapter] = {}
        self._slices: list[tuple[int, slice]] = []
        layers: dict[str, dict[int, _Matrices]] = {}
        for lora_id, (name, folder) in enumerate(folders.items(), 1):
            digest = hashlib.sha256()
            for layer, matrices in _read_adapter(name, folder, model).items():
                layers.setdefault(layer, {})[lora_id] = matrices
                for matrix in matrices:
                    digest.update(f"{layer} {tuple(matrix.shape)}".encode())
                    digest.update(matrix.float().contiguous().cpu().numpy().data)
            self.by_name[name] = LoraAdapter(lora_id, digest.hexdigest())
        for layer, matrices_by_id in layers.items():
            model.get_submodule(layer).register_forward_hook(self._make_hook(matrices_by_id))

    def set_token_adapters(self, lora_ids: Sequence[int]) -> None:
        """Set the adapter of each token of the next step; 0 is the base model."""
        self._slices, start = [], 0
        for lora_id, rows in groupby(lora_ids):
            end = start + sum(1 for _ in rows)
            if lora_id:
                self._slices.append((lora_id, slice(start, end)))
            start = end

    def _make_hook(self, matrices_by_id: Mapping[int, _Matrices]) -> Any:
        def add(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            for lora_id, rows in self._slices:
                if lora_id in matrices_by_id:
                    a, b = matrices_by_id[lora_id]
                    output[:, rows] += inputs[0][:, rows] @ a.T @ b.T
            return output

        return add


def _read_adapter(name: str, folder: Path, model: Any) -> dict[str, _Matrices]:
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError) as error:
        raise ModelUnsupported(f"cannot read adapter {name!r} in {folder}: {error}") from None
    reasons = [reason for field, reason in _UNSUPPORTED.items() if config.get(field)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none":
        reasons.append(f"it is of type {config.get('peft_type')} with bias {config.get('bias')}")
    if reasons:
        raise ModelUnsupported(f"adapter {name!r} cannot be served: {reasons[0]}")
    layers = {}
    for key, a in tensors.items():
        layer, separator, _ = key.removeprefix("base_model.model.").partition(".lora_A.")
        b = tensors.get(key.replace(".lora_A.", ".lora_B."))
        if not separator:
            if ".lora_B." not in key:
                raise ModelUnsupported(f"adapter {name!r} cannot be served: {key} is not a matrix of a linear layer")
            continue
        layers[layer] = _check_matrices(name, layer, a, b, config, model)
    return layers


def _check_matrices(
    name: str, layer: str, a: torch.Tensor, b: torch.Tensor | None, config: dict[str, Any], model: Any
) -> _Matrices:
    try:
        module = model.get_submodule(layer)
    except AttributeError:
        module = None
    if not isinstance(module, torch.nn.Linear | PackedLinear):
        raise ModelUnsupported(f"adapter {name!r} does not fit this model, which has no linear layer {layer}")
    if module is model.get_output_embeddings():
        raise ModelUnsupported(f"adapter {name!r} cannot be served: it changes {layer}, which computes only some rows")
    rank = a.shape[0]
    if b is None or (b.shape[0], a.shape[1]) != (module.out_features, module.in_features) or b.shape[1] != rank:
        raise ModelUnsupported(f"adapter {name!r} does not fit this model: {layer} has another shape")
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    return a.to(model.device, model.dtype), (b * scale).to(model.device, model.dtype)
