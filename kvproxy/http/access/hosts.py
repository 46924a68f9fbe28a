"""Names by which a proxy is reached: whether one is this machine's alone, or could be anybody's."""

from functools import lru_cache
from ipaddress import ip_address

# Nobody can register a name under these (RFC 2606, 6761, 6762, 8375), so no page can be served from one that is rebound.
_PRIVATE = (".localhost", ".local", ".internal", ".localdomain", ".lan", ".home.arpa", ".test", ".invalid")


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@lru_cache(maxsize=1024)
def is_public_name(host: str) -> bool:
    """Whether a host is a name that somebody could register: no address, no name without a dot, none under a private suffix."""
    try:
        ip_address(host)
    except ValueError:
        name = host.rstrip(".").lower()
        return "." in name and not name.endswith(_PRIVATE)
    return False


def host_of(authority: str) -> str:
    """The host of `host:port` or `[address]:port`."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].lower()
