"""The exact prefix block cache: no torch, no I/O."""
