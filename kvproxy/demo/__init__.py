"""The built-in demonstration model: a small Llama that knows the handbook and nothing else."""

import hashlib
from pathlib import Path

from kvproxy.errors import ModelUnsupported

DEMO = "demo"
"""The name under which settings and requests know the model."""

SHA256 = {
    "model.safetensors": "4d84e09cab1a58123724cb5f54424dcb21399971805d5eb8c98626c4daddc465",
    "tokenizer.json": "4c109b768e94001229ab8971066ee426f32e0d34637975e5a02c1e03228964ba",
}
"""Of the released model; who trains another writes its digests here."""


def model_path() -> Path:
    """The folder of the model in the package, in Hugging Face's layout."""
    return Path(__file__).parent / "model"


def verified_model_path() -> Path:
    """Return `model_path` after a check that the weights are the released ones.

    Raises:
        ModelUnsupported: the weights are missing or modified; the message names the fix.
    """
    for name, digest in SHA256.items():
        file = model_path() / name
        try:
            found = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError:
            found = "none"
        if found != digest:
            raise ModelUnsupported(
                f"{file} is not the demo model's (SHA-256 {found[:12]}): install kvproxy again, or give --model"
            )
    return model_path()
