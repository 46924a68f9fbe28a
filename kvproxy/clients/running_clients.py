"""The interface to the clients of a running proxy."""

from typing import Protocol

from kvproxy.clients.spending_tables import SpentAndReserved
from kvproxy.settings.access import ClientSettings


class RunningClients(Protocol):
    """The clients and their money in the memory of a running proxy."""

    def unwritten_money(self) -> SpentAndReserved:
        """Return the spent and reserved money that the proxy could not write to its table yet."""

    def known_clients(self) -> list[ClientSettings]: ...

    def known_money(self) -> SpentAndReserved: ...

    def switched(self, client: ClientSettings) -> ClientSettings:
        """Return the client as it is after `switch`."""

    def switch(self, name: str, operator: str, *, disabled: bool) -> ClientSettings:
        """Disable or enable a client in memory until this can be stored, and return it. Raises NotFound or InvalidRequest."""

    def end_switch(self, name: str) -> bool:
        """Use the stored state of a client again; return whether it was switched."""
