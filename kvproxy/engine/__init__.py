"""The embedded engine: a transformers causal model over our own paged KV pool."""
