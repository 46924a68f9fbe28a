"""Tells a store in a database server from a store in a file."""

import re

_SCHEMES = ("postgresql://", "postgres://")
PASSWORD_ERROR = "its password has a special character: write / as %2F, ? as %3F, # as %23, @ as %40, and % as %25"
_UNENCODED = re.compile(r"[/?#@]|%(?![0-9A-Fa-f]{2})")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


def is_url(location: str) -> bool:
    return location.startswith(_SCHEMES)


def location_error(location: str) -> str | None:
    """Return why a location is neither a file nor a database of PostgreSQL, with the fix; None if it is one of them.

    The text contains no password.
    """
    if is_url(location):
        credentials = location.partition("://")[2].rpartition("@")[0]
        return PASSWORD_ERROR if _UNENCODED.search(credentials) else None
    scheme = _SCHEME.match(location)
    if scheme is not None:
        # The rest of a URL may contain a password.
        file = location[scheme.end() :].removeprefix("/")
        is_file = scheme[1].lower() == "sqlite" and file
        return f"{scheme[0]} is no store of kvproxy: give {f'the path {file}' if is_file else 'a path, or postgresql://...'}"
    if ":memory:" in location:
        return "a store in memory is not supported: give a path, for example in a temporary folder"
    return None
