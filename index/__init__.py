"""The response cache: exact keys and vector similarity over earlier requests."""
