"""LoRA adapters: small matrices beside the model's own, for the requests that name them.

A step may hold tokens of several adapters. Each adapted layer adds to its own output, for each adapter's rows, what that
adapter's two matrices make of its input.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from kvproxy.engine.kernels.fused_layers import FusedGatedMLP
from kvproxy.engine.kernels.packed_linear import PackedModule
from kvproxy.errors import ModelUnsupported

_REFUSED = {
    "use_dora": "it is a DoRA adapter",
    "modules_to_save": "it replaces whole layers",
    "alpha_pattern": "its scale differs between layers",
    "layer_replication": "it repeats layers",
    "fan_in_fan_out": "its matrices are transposed",
    "lora_bias": "it has biases",
}


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A loaded adapter: its number among the engine's (from 1), and a digest of what it adds."""

    number: int
    digest: str


class LoraManager:
    """Adapters of one model, by the names that requests give as their model.

    Args:
        model: the model; its layers get hooks, its weights stay as they are.
        folders: where each adapter lies, as peft saves it.

    Raises:
        ModelUnsupported: an adapter cannot be read, or does not fit the model.
    """

    def __init__(self, model: Any, folders: Mapping[str, Path]) -> None:
        self.by_name: dict[str, LoraAdapter] = {}
        self._rows: list[tuple[int, slice]] = []
        layers: dict[str, dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}
        for number, (name, folder) in enumerate(folders.items(), 1):
            digest = hashlib.sha256()
            for layer, pair in _read(name, folder, model).items():
                layers.setdefault(layer, {})[number] = pair
                for part in pair:
                    digest.update(f"{layer} {tuple(part.shape)}".encode())
                    digest.update(part.float().contiguous().cpu().numpy().data)
            self.by_name[name] = LoraAdapter(number, digest.hexdigest())
        for layer, pairs in layers.items():
            parent = model.get_submodule(layer.rpartition(".")[0])
            if isinstance(parent, FusedGatedMLP):
                parent.is_split = True
            model.get_submodule(layer).register_forward_hook(self._hook(pairs))

    def use(self, numbers: Sequence[int]) -> None:
        """Say which adapter each row of the next step has, 0 for none."""
        self._rows, start = [], 0
        for number, rows in groupby(numbers):
            end = start + sum(1 for _ in rows)
            if number:
                self._rows.append((number, slice(start, end)))
            start = end

    def _hook(self, pairs: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> Any:
        def add(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            for number, rows in self._rows:
                if number in pairs:
                    down, up = pairs[number]
                    output[:, rows] += inputs[0][:, rows] @ down.T @ up.T
            return output

        return add


def _read(name: str, folder: Path, model: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The two matrices of each layer, the second one scaled."""
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError) as error:
        raise ModelUnsupported(f"cannot read adapter {name!r} in {folder}: {error}") from None
    reasons = [reason for field, reason in _REFUSED.items() if config.get(field)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or reasons:
        why = (reasons or [f"it is of type {config.get('peft_type')} with bias {config.get('bias')}"])[0]
        raise ModelUnsupported(f"adapter {name!r} cannot be served: {why}")
    pairs = {}
    for key, down in tensors.items():
        layer, found, _ = key.removeprefix("base_model.model.").partition(".lora_A.")
        up = tensors.get(key.replace(".lora_A.", ".lora_B."))
        if not found:
            if ".lora_B." not in key:
                raise ModelUnsupported(f"adapter {name!r} cannot be served: {key} is no matrix of a linear layer")
            continue
        pairs[layer] = _pair(name, layer, down, up, config, model)
    return pairs


def _pair(
    name: str, layer: str, down: torch.Tensor, up: torch.Tensor | None, config: dict[str, Any], model: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        module = model.get_submodule(layer)
    except AttributeError:
        module = None
    if not isinstance(module, torch.nn.Linear | PackedModule):
        raise ModelUnsupported(f"adapter {name!r} does not fit this model, which has no linear layer {layer}")
    if module is model.get_output_embeddings():
        raise ModelUnsupported(
            f"adapter {name!r} cannot be served: it changes {layer}, which sees only some of the rows"
        )
    rank = down.shape[0]
    if up is None or (up.shape[0], down.shape[1]) != (module.out_features, module.in_features) or up.shape[1] != rank:
        raise ModelUnsupported(f"adapter {name!r} does not fit this model: {layer} has another shape")
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    return down.to(model.device, model.dtype), (up * scale).to(model.device, model.dtype)
