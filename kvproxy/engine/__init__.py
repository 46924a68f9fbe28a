"""The embedded engine. A step is a forward pass; a request with `n` completions has `n` sequences."""
