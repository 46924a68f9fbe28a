"""Runs the demonstration model with numpy, so that the proxy can be tried without torch."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kvproxy.blocks.divergence import common_prefix_length

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
_MAX_CACHED_TOKENS = 16_384


@dataclass(slots=True)
class _Sequence:
    """Tokens with their keys and values, of shape (layers, 2, heads, positions, head size). Only the first are filled in."""

    tokens: list[int]
    cache: Array


@dataclass(frozen=True, slots=True)
class Generation:
    """Tokens of a response, computed as they are read; `reused_tokens` of the prompt were computed before."""

    tokens: Iterator[int]
    prompt_tokens: int
    reused_tokens: int


class NumpyModel:
    """A Llama in float32. One thread at a time may use it. `folder` has the format of Hugging Face."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.max_positions: int = config["max_position_embeddings"]
        self.end_token: int = config["eos_token_id"]
        self._layers: int = config["num_hidden_layers"]
        self._heads: int = config["num_attention_heads"]
        self._kv_heads: int = config["num_key_value_heads"]
        self._size: int = config["head_dim"]
        self._epsilon: float = config["rms_norm_eps"]
        self._weights = _read_weights(folder / "model.safetensors")
        half = self._size // 2
        frequencies = config["rope_parameters"]["rope_theta"] ** (-np.arange(half) / half)
        angles = np.outer(np.arange(self.max_positions), frequencies).astype(np.float32)
        self._cos, self._sin = np.cos(angles), np.sin(angles)
        self._sequences: list[_Sequence] = []

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Generation:
        """Return the most probable tokens after a prompt, until the end token, at most `max_tokens`.

        The prompt may have at most `max_positions - 1` tokens.
        """
        sequence, reused = self._begin(prompt, min(len(prompt) + max_tokens - 1, self.max_positions))
        return Generation(self._tokens(sequence, prompt, reused), len(prompt), reused)

    def reusable_tokens(self, prompt: Sequence[int]) -> int:
        """Return the number of the prompt's tokens that `generate` would reuse."""
        return max(self._common_lengths(prompt), default=0)

    def _common_lengths(self, prompt: Sequence[int]) -> list[int]:
        return [common_prefix_length(known.tokens, prompt[:-1]) for known in self._sequences]

    def _begin(self, prompt: Sequence[int], positions: int) -> tuple[_Sequence, int]:
        """Return a sequence that begins with the longest known prefix of the prompt, without its last token, and its length."""
        shape = self._layers, 2, self._kv_heads, positions, self._size
        sequence = _Sequence([], np.empty(shape, dtype=np.float32))
        lengths = self._common_lengths(prompt)
        reused = max(lengths, default=0)
        if reused:
            known = self._sequences[lengths.index(reused)]
            sequence.cache[..., :reused, :] = known.cache[..., :reused, :]
            sequence.tokens = [*prompt[:reused]]
        self._sequences.append(sequence)
        while (
            len(self._sequences) > 1 and sum(cached.cache.shape[3] for cached in self._sequences) > _MAX_CACHED_TOKENS
        ):
            del self._sequences[0]
        return sequence, reused

    def _tokens(self, sequence: _Sequence, prompt: Sequence[int], reused: int) -> Iterator[int]:
        added = [*prompt[reused:]]
        while True:
            token = int(np.argmax(self._forward(sequence, added)))
            if token == self.end_token:
                return
            yield token
            if len(sequence.tokens) == sequence.cache.shape[3]:
                return
            added = [token]

    def _forward(self, sequence: _Sequence, added: Sequence[int]) -> Array:
        """Append tokens to a sequence, and return the logits of the next one, of shape (vocabulary,)."""
        weights, start, end = self._weights, len(sequence.tokens), len(sequence.tokens) + len(added)
        cos, sin = self._cos[start:end], self._sin[start:end]
        future = np.triu(np.full((len(added), end), -np.inf, dtype=np.float32), start + 1)
        hidden = weights["model.embed_tokens.weight"][list(added)]
        for layer in range(self._layers):
            name = f"model.layers.{layer}"
            normal = self._normalize(hidden, f"{name}.input_layernorm")
            query, key, value = (
                (normal @ weights[f"{name}.self_attn.{part}_proj.weight"].T)
                .reshape(len(added), -1, self._size)
                .transpose(1, 0, 2)
                for part in "qkv"
            )
            keys, values = sequence.cache[layer]
            keys[:, start:end], values[:, start:end] = _rotate(key, cos, sin), value
            grouped = _rotate(query, cos, sin).reshape(self._kv_heads, -1, len(added), self._size)
            scores = grouped @ keys[:, None, :end].transpose(0, 1, 3, 2) / np.sqrt(np.float32(self._size)) + future
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ values[:, None, :end]
            mixed = mixed.reshape(self._heads, len(added), self._size).transpose(1, 0, 2).reshape(len(added), -1)
            hidden = hidden + mixed @ weights[f"{name}.self_attn.o_proj.weight"].T
            normal = self._normalize(hidden, f"{name}.post_attention_layernorm")
            gate = normal @ weights[f"{name}.mlp.gate_proj.weight"].T
            up = normal @ weights[f"{name}.mlp.up_proj.weight"].T
            hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{name}.mlp.down_proj.weight"].T
        sequence.tokens += added
        logits: Array = weights["model.embed_tokens.weight"] @ self._normalize(hidden[-1], "model.norm")
        return logits

    def _normalize(self, hidden: Array, name: str) -> Array:
        scale = np.sqrt(np.mean(hidden * hidden, axis=-1, keepdims=True) + np.float32(self._epsilon))
        normal: Array = hidden / scale * self._weights[f"{name}.weight"]
        return normal


def _read_weights(file: Path) -> dict[str, Array]:
    """Read bfloat16 tensors, a type that numpy lacks, as float32."""
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:begin])
    weights = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            halves = np.frombuffer(data, dtype="<u2", count=(end - start) // 2, offset=begin + start)
            weights[name] = (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
    return weights


def _rotate(heads: Array, cos: Array, sin: Array) -> Array:
    """Apply rotary position embeddings to heads of shape (heads, positions, head size)."""
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
