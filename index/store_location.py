"""Tells a store in a database server from a store in a file."""

_SCHEMES = ("postgresql://", "postgres://")


def is_url(location: str) -> bool:
    return location.startswith(_SCHEMES)
