"""The built-in demonstration model: a small Llama that was trained on questions about kvproxy only."""

import hashlib
from pathlib import Path

from kvproxy.errors import ModelUnsupported

DEMO = "demo"
REUSE_PATH = "/reuse"
"""End of the routes of the demonstration server that return how much of a prompt it would reuse."""
# Update the digests after a training.
SHA256 = {
    "model.safetensors": "4d84e09cab1a58123724cb5f54424dcb21399971805d5eb8c98626c4daddc465",
    "tokenizer.json": "4c109b768e94001229ab8971066ee426f32e0d34637975e5a02c1e03228964ba",
}


def model_path() -> Path:
    return Path(__file__).parent / "model"


def verified_model_path() -> Path:
    """Check the digests of the model's files, and return their folder, in the format of Hugging Face.

    Raises:
        ModelUnsupported: the weights are missing or modified; the message names the fix.
    """
    for name, digest in SHA256.items():
        file = model_path() / name
        try:
            actual = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError:
            actual = "none"
        if actual != digest:
            raise ModelUnsupported(
                f"{file} is not the demo model's (SHA-256 {actual[:12]}): install kvproxy again, or give --model"
            )
    return model_path()
