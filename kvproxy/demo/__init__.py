"""The built-in demonstration model: a small Llama that knows the handbook (docs/handbook.md) and nothing else."""

from pathlib import Path

DEMO = "demo"
"""The name under which settings and requests know the model."""


def model_path() -> Path:
    """The folder of the model in the package, in Hugging Face's layout."""
    return Path(__file__).parent / "model"
