"""Computes the size of a model's KV cache, and the cost of prompts in a pool with tiers."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproxy.analyse.simulate.trace_reader import TraceError
from kvproxy.errors import describe_cause
from kvproxy.upstreams.limited_fetch import FetchError, fetch

GIB = 2**30
# GiB per second: PCIe 4.0, an NVMe disk, and a network of 10 Gbit/s.
BANDWIDTHS = {"host": 20.0, "disk": 3.0, "redis": 1.0}
_ELEMENT_BYTES = {"float32": 4, "fp8": 1, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True)
class KVSize:
    """The size of a model's KV cache.

    Attributes:
        token: bytes of a token in the layers with full attention.
        window_token, window: bytes of a token in layers with a sliding window, and size of the window in tokens.
        prompt: bytes of a prompt in layers with a state of constant size.
    """

    token: int
    window_token: int = 0
    window: int = 0
    prompt: int = 0

    def bytes_per_token(self, prompt_tokens: float) -> float:
        """Return the KV bytes per token of a prompt with `prompt_tokens` tokens."""
        tokens = max(1.0, prompt_tokens)
        return self.token + (self.window_token * min(tokens, self.window) + self.prompt) / tokens


def kv_size(model: str) -> KVSize:
    """Compute the KV size from the config.json of a folder, a file, or a model on Hugging Face. Raises TraceError."""
    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    try:
        if path.is_file():
            text = path.read_text()
        else:
            url = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/{model}/resolve/main/config.json"
            response = fetch(url, 30.0, follow_redirects=True)
            if response.status != 200:
                raise FetchError(f"{url} answered {response.status}")
            text = response.content.decode()
        config: dict[str, Any] = json.loads(text)
        return _kv_size(config.get("text_config") or config)
    except (FetchError, OSError, ValueError, KeyError, TypeError) as error:
        raise TraceError(
            f"cannot read config.json of {model} ({describe_cause(error)}): use the folder of a transformers model, or"
            " --bytes-per-token"
        ) from None


def _kv_size(config: dict[str, Any]) -> KVSize:
    width = _ELEMENT_BYTES.get(config.get("torch_dtype") or config.get("dtype") or "", 2)
    layers = int(config["num_hidden_layers"])
    kinds = _layer_kinds(config, layers)
    if "kv_lora_rank" in config:
        # Multi-head latent attention keeps one compressed vector and the rotated key.
        return KVSize(width * layers * (int(config["kv_lora_rank"]) + int(config.get("qk_rope_head_dim") or 0)))
    heads = int(config["num_attention_heads"])
    head = int(config.get("head_dim") or config["hidden_size"] // heads)
    layer = 2 * width * head * int(config.get("num_key_value_heads") or heads)
    per_channel = int(config.get("mamba_d_state") or config.get("linear_key_head_dim") or head)
    state = width * int(config.get("hidden_size") or heads * head) * per_channel
    full, sliding, linear = map(kinds.count, ("full", "sliding", "linear"))
    return KVSize(layer * full, layer * sliding, int(config.get("sliding_window") or 0), state * linear)


def _layer_kinds(config: dict[str, Any], layers: int) -> list[str]:
    if types := config.get("layer_types") or config.get("layers_block_type"):
        kinds = {"full_attention": "full", "attention": "full", "sliding_attention": "sliding"}
        return [kinds.get(layer_type, "linear") for layer_type in types]
    if pattern := config.get("hybrid_override_pattern"):
        return ["full" if layer == "*" else "linear" for layer in pattern if layer in "*M"]
    if period := config.get("attn_layer_period") or config.get("full_attention_interval"):
        offset = config.get("attn_layer_offset", period - 1)
        return ["full" if index % period == offset else "linear" for index in range(layers)]
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return ["full"] * layers
    every = config.get("sliding_window_pattern") or layers + 1
    return ["sliding" if (index + 1) % every else "full" for index in range(layers)]


@dataclass(frozen=True, slots=True)
class EngineTier:
    """A tier of one engine, which has its most recently used blocks, also those on the GPU.

    Attributes:
        blocks: its size in blocks.
        load_rate: tokens that the engine loads from it per second.
    """

    name: str
    blocks: int
    load_rate: float


@dataclass(frozen=True, slots=True)
class Tier:
    """Slower memory that has the most recently used blocks. The bandwidth is in GiB per second."""

    name: str
    gib: float
    bandwidth: float

    def for_engine(self, speed: "EngineSpeed", block_tokens: int) -> "EngineTier":
        """Return this tier in blocks of one engine, and with its speed in tokens."""
        blocks = int(self.gib * GIB / (speed.token_bytes * block_tokens))
        return EngineTier(self.name, max(1, blocks), self.bandwidth * GIB / speed.token_bytes)


def parse_tier(text: str) -> Tier:
    """Parse `host=64` or `host=64@25`: kind, GiB, and GiB per second. Raises ValueError."""
    name, _, rest = text.partition("=")
    size, _, speed = rest.partition("@")
    if name not in BANDWIDTHS:
        raise ValueError(f"{text!r} is not a tier: use host=64, disk=500 or redis=1000@2 (GiB @ GiB per second)")
    tier = Tier(name, float(size), float(speed) if speed else BANDWIDTHS[name])
    if not (0 < tier.gib < 1e9 and 0 < tier.bandwidth < 1e9):
        raise ValueError(f"{text!r}: sizes and speeds must be above 0")
    return tier


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """An engine's prompt tokens per second, its KV bytes per token, and its price per hour."""

    prefill_rate: float
    token_bytes: float
    hour_price: float


@dataclass(frozen=True, slots=True)
class PoolCost:
    """The cost of computing the prompts with one pool size.

    Attributes:
        hits: share of the prompt tokens that are cached in the pool (key `pool`) and in each tier (key: its name).
        ttft: mean seconds for the prefill and the transfers of a request, without queueing.
        price: price of a million prompt tokens.
    """

    hits: dict[str, float]
    ttft: float
    price: float


def pool_cost(
    hits: Sequence[int], tiers: Sequence[Tier], speed: EngineSpeed, *, tokens: int, requests: int
) -> PoolCost:
    """Compute the cost of a pool and its tiers. A block is loaded from the first tier that has it, unless prefill is faster.

    Args:
        hits: number of prompt tokens that LRU reuses with the size of the pool, then with the size of each tier.
        tokens, requests: number of all prompt tokens, and of all requests.
    """
    seconds, known = 0.0, hits[0]
    shares = {"pool": known / (tokens or 1)}
    for tier, reused in zip(tiers, hits[1:], strict=True):
        added = max(0, reused - known)
        known += added
        shares[tier.name] = added / (tokens or 1)
        seconds += added * min(1 / speed.prefill_rate, speed.token_bytes / (tier.bandwidth * GIB))
    seconds += (tokens - known) / speed.prefill_rate
    return PoolCost(shares, seconds / (requests or 1), seconds / 3600 * speed.hour_price / (tokens or 1) * 1e6)
