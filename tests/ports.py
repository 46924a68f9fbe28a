"""Free ports."""

import contextlib
import random
import socket

_PORTS = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections, which could take a port before the test does."""
_random = random.SystemRandom()


def free_port() -> int:
    while True:
        port = _random.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
