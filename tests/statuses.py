"""The response header `Cache-Status`."""


def makes_entry(status: str) -> bool:
    """Return whether the response was computed, and is stored or will be."""
    return "; fwd=" in status and '; key="' in status
