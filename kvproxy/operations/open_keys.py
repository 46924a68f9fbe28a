"""Opens the clients of a running proxy, of a data folder, or of a store in PostgreSQL."""

from typing import TYPE_CHECKING, Protocol

from kvproxy.operations.operation import Operation, Parameters, Result

if TYPE_CHECKING:
    from kvproxy.operations.keys import KeysAccess


class KeysClient(Protocol):
    """Performs the operations of `kvproxy.operations.keys`."""

    def perform(
        self, operation: "Operation[KeysAccess, Parameters, Result]", parameters: "Parameters", /
    ) -> "Result": ...


class DirectKeys:
    """Performs operations on clients in the files, or in PostgreSQL, without a proxy."""

    def __init__(self, access: "KeysAccess") -> None:
        self.access = access

    def perform(self, operation: "Operation[KeysAccess, Parameters, Result]", parameters: "Parameters", /) -> "Result":
        return operation(self.access, parameters)
