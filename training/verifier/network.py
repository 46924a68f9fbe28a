"""The verifier in torch, for training, and as a reference for its ONNX graph."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kvproxy.index.models.minilm.weights import EPSILON, HEADS, LAYERS, MATRICES, Weights

HEAD_WIDTH = 128
DROPOUT = 0.1
NORMS = ("norm1", "norm2")


class AdaptedLinear(nn.Module):
    """A linear layer with a frozen matrix, a trained low-rank change of it, and a trained bias. Rank 0 omits the change."""

    def __init__(self, weight: Tensor, bias: Tensor, rank: int) -> None:
        super().__init__()
        self.weight: Tensor
        self.register_buffer("weight", weight, persistent=False)
        self.bias = nn.Parameter(bias.clone())
        self.rank = rank
        if rank:
            # As in LoRA (arXiv 2106.09685), one factor starts at zero, so that training starts from the base weights.
            self.low = nn.Parameter(torch.randn(rank, weight.shape[1]) * weight.shape[1] ** -0.5)
            self.high = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        return y + F.linear(F.linear(x, self.low), self.high) if self.rank else y


class Norm(nn.LayerNorm):
    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight.shape[0], eps=EPSILON)
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(bias.clone())


class Layer(nn.Module):
    def __init__(self, weights: dict[str, Tensor], prefix: str, rank: int) -> None:
        super().__init__()
        parts = {
            name: (weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"]) for name in (*MATRICES, *NORMS)
        }
        self.qkv, self.out, self.up, self.down = (AdaptedLinear(*parts[name], rank) for name in MATRICES)
        self.norm1, self.norm2 = (Norm(*parts[name]) for name in NORMS)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.dropout(self.out(seen.transpose(1, 2).reshape(n, length, width))))
        y: Tensor = self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))
        return y


class CrossEncoder(nn.Module):
    """Computes the logit that one answer serves both questions, from `[CLS] a [SEP] b [SEP]`.

    The head reads the hidden state of `[CLS]`, and the distance and product of the two questions' mean hidden states. The trained
    change of each matrix has the rank `rank`.
    """

    def __init__(self, weights: Weights, rank: int = 0) -> None:
        super().__init__()
        tensors = {name: torch.tensor(value) for name, value in weights.items()}
        self.word: Tensor
        self.position: Tensor
        self.register_buffer("word", tensors["embeddings.word"], persistent=False)
        self.register_buffer("position", tensors["embeddings.position"], persistent=False)
        self.segment = nn.Parameter(tensors["embeddings.segment"].clone())
        self.norm = Norm(tensors["embeddings.norm.weight"], tensors["embeddings.norm.bias"])
        self.layer = nn.ModuleList(Layer(tensors, f"layer.{n}.", rank) for n in range(LAYERS))
        width = self.word.shape[1]
        self.hidden = nn.Linear(3 * width, HEAD_WIDTH)
        self.score = nn.Linear(HEAD_WIDTH, 1)
        self.dropout = nn.Dropout(DROPOUT)
        if "head.hidden.weight" in tensors:
            for name, module in (("hidden", self.hidden), ("score", self.score)):
                module.weight.data.copy_(tensors[f"head.{name}.weight"])
                module.bias.data.copy_(tensors[f"head.{name}.bias"])

    def forward(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Return logits `[n]`. The inputs are `[n, length]` int64; segments are 0 or 1, and the mask is 0 for padding."""
        x = self.encode(ids, segments, mask)
        u, v = _mean(x, mask * (1 - segments)), _mean(x, mask * segments)
        features = self.dropout(torch.cat([x[:, 0], (u - v).abs(), u * v], dim=1))
        logit: Tensor = self.score(F.gelu(self.hidden(features)))[:, 0]
        return logit

    def encode(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        x: Tensor = self.norm(self.word[ids] + self.position[: ids.shape[1]] + self.segment[segments])
        seen = None if bool(mask.all()) else mask[:, None, None, :].bool()
        for layer in self.layer:
            x = layer(x, seen)
        return x

    def adapter(self) -> Weights:
        """Return the trained parameters under the names that `weights.merge_adapter` reads."""
        return {_adapter_name(name): value.detach().cpu().numpy().copy() for name, value in self.named_parameters()}

    def load_adapter(self, adapter: Weights) -> None:
        for name, value in self.named_parameters():
            value.data.copy_(torch.from_numpy(adapter[_adapter_name(name)]))


_PREFIXES = {
    "norm.": "embeddings.norm.",
    "segment": "embeddings.segment",
    "hidden.": "head.hidden.",
    "score.": "head.score.",
}


def _adapter_name(name: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
    return name if prefix is None else _PREFIXES[prefix] + name.removeprefix(prefix)


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    weight = mask[:, :, None].to(x.dtype)
    return (x * weight).sum(1) / weight.sum(1).clamp(min=1)


def pad(encoded: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids, segments, and mask of encoded texts or pairs, each `[n, longest]` int64."""
    shape = len(encoded), max(len(each.ids) for each in encoded)
    ids, segments, mask = (np.zeros(shape, np.int64) for _ in range(3))
    for row, each in enumerate(encoded):
        length = len(each.ids)
        ids[row, :length], segments[row, :length], mask[row, :length] = each.ids, each.type_ids, 1
    return ids, segments, mask


def write_tensors(path: Path, tensors: Weights, metadata: Mapping[str, str]) -> None:
    from safetensors.numpy import save_file

    part = path.with_suffix(".part")
    save_file({name: value.astype(np.float16) for name, value in tensors.items()}, part, dict(metadata))
    part.replace(path)
