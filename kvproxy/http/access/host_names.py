from ipaddress import ip_address

# These suffixes cannot be registered (RFC 2606, 6761, 6762, 8375), so DNS rebinding cannot use them.
_PRIVATE = (".localhost", ".local", ".internal", ".localdomain", ".lan", ".home.arpa", ".test", ".invalid")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_public_name(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        name = host.rstrip(".").lower()
        return "." in name and not name.endswith(_PRIVATE)
    return False


def host_of(authority: str) -> str:
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].lower()
