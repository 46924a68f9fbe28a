"""What chunks of keys and values depend on besides their tokens, as one digest."""

import hashlib
import json

import torch
import xxhash

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.engine.models.loader import LoadedModel
from kvproxy.settings import EngineSettings

_ARITHMETIC = 2
"""Counts the changes of this engine that may alter the last bits of what it computes."""
_UNRELATED = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype")


def fingerprint(loaded: LoadedModel, settings: EngineSettings, hasher: BlockHasher) -> bytes:
    """32 bytes that differ whenever keys and values may: configuration, every weight, type, device, shape, hashing.

    Reads all weights once (about 10 GB/s), so a fine-tuned copy under the same name is another model. In strict mode they
    differ too where only the last bits may: by the length of pieces, the version of torch, kernels, processor and threads.
    """
    config = {name: value for name, value in loaded.model.config.to_dict().items() if name not in _UNRELATED}
    shape = loaded.shape
    facts = {
        "config": config,
        "weights": _weights(loaded.model),
        "dtype": str(loaded.dtype),
        "device": loaded.device.type,
        "shape": [shape.layers, shape.kv_heads, shape.head_dim, settings.block_size],
        "hashing": [hasher.algorithm, hasher.none_hash.hex()],
    }
    if settings.strict:
        processor = (
            torch.cuda.get_device_name(loaded.device)
            if loaded.device.type == "cuda"
            else [torch.backends.cpu.get_cpu_capability(), settings.threads or torch.get_num_threads()]
        )
        kernels = [settings.prefill_attention, settings.decode_attention, settings.cuda_graphs]
        facts["strict"] = [settings.max_batch_tokens, torch.__version__, processor, kernels, _ARITHMETIC]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).digest()


@torch.inference_mode()
def _weights(model: torch.nn.Module) -> str:
    digest = xxhash.xxh3_128()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()
