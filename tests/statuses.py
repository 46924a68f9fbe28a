"""What `Cache-Status` says of an answer."""


def makes_entry(status: str) -> bool:
    """Whether the answer was computed, and a named entry of it is on its way to the store or there already."""
    return "; fwd=" in status and '; key="' in status
