"""The embedded engine: a transformers model over a paged KV pool."""
