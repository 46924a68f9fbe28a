import hashlib
import json

import torch
import xxhash

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.settings import EngineSettings

_ARITHMETIC_VERSION = 3
"""Increase this number with every change of the code that may alter the last bits of keys or values."""
_IGNORED_CONFIG = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype")


def model_fingerprint(loaded: LoadedModel, settings: EngineSettings, hasher: BlockHasher) -> bytes:
    """Return a 32-byte digest of everything except tokens that determines a model's keys and values.

    With the setting `batch_invariant`, it also covers what may change their last bits, such as torch's version.
    """
    config = {name: value for name, value in loaded.model.config.to_dict().items() if name not in _IGNORED_CONFIG}
    shape = loaded.shape
    parts = {
        "config": config,
        "weights": _hash_weights(loaded.model),
        "dtype": str(loaded.dtype),
        "device": loaded.device.type,
        "shape": [shape.layers, shape.kv_heads, shape.head_dim, settings.block_size],
        "hashing": [hasher.algorithm, hasher.none_hash.hex()],
    }
    if settings.batch_invariant:
        processor = (
            torch.cuda.get_device_name(loaded.device)
            if loaded.device.type == "cuda"
            else [torch.backends.cpu.get_cpu_capability(), settings.threads or torch.get_num_threads()]
        )
        kernels = [settings.prefill_attention, settings.decode_attention, settings.cuda_graphs]
        parts["strict"] = [settings.max_num_batched_tokens, torch.__version__, processor, kernels, _ARITHMETIC_VERSION]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).digest()


@torch.inference_mode()
def _hash_weights(model: torch.nn.Module) -> str:
    digest = xxhash.xxh3_128()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()
