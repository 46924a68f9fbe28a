"""The prefix block cache: no torch, no I/O."""
