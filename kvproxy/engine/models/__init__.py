"""Models: loading, layer groups, and LoRA adapters."""
