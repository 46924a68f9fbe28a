"""Reports the state of the process to systemd, by the protocol of sd_notify(3)."""

import contextlib
import os
import socket


def notify_service_manager(state: str) -> None:
    """Report a state, such as `READY=1`, if systemd has started the process with `Type=notify`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        # A leading @ stands for the zero byte of an abstract socket.
        name = f"\0{address[1:]}" if address.startswith("@") else address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(state.encode(), name)
