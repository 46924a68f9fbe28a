"""Addresses of event sockets: `tcp://host:5557`, or `tcp://host:5557-5560` for four data-parallel ranks."""

import re

_TCP = re.compile(r"(tcp://[^\s]+:)(\d+)(?:-(\d+))?")


def expand(endpoint: str) -> list[str]:
    """The sockets that an endpoint names, one a rank; engines give each rank the next port.

    Raises:
        ValueError: it names none.
    """
    if re.fullmatch(r"(ipc|inproc)://\S+", endpoint):
        return [endpoint]
    found = _TCP.fullmatch(endpoint)
    if found is None:
        raise ValueError(f"{endpoint!r} is no endpoint: write tcp://host:5557, or tcp://host:5557-5560 for four ranks")
    first, last = int(found[2]), int(found[3] or found[2])
    if not first <= last <= 65_535 or last - first > 1023:
        raise ValueError(f"{endpoint!r} names no range of ports: write the lower one first")
    return [f"{found[1]}{port}" for port in range(first, last + 1)]
