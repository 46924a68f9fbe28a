"""The operations on clients and their API keys, for commands beside the files of a proxy: no route creates a key."""

from contextlib import closing
from dataclasses import dataclass

from kvproxy.clients import client_keys
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.journal.reader import JournalReader
from kvproxy.operations.keys_parameters import LIMITS, ClientChange, ClientLimits, ClientName, KeyRotation, NewClient
from kvproxy.settings import Settings


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new API key. `is_first`: the client is the first one, so the proxy rejects requests without a key from now on."""

    name: str
    key: str
    is_first: bool = False


@dataclass(frozen=True, kw_only=True)
class ListedClient(ClientLimits, ClientName):
    """A client with the time of its last request in the journal, and the end of its previous key's validity.

    Times are in seconds since the epoch.
    """

    previous_key_expires: float | None
    last_used: float | None


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """A change by an operator. `changed` is in seconds since the epoch."""

    changed: float
    operator: str
    change: str


def add_client(settings: Settings, client: NewClient) -> CreatedKey:
    key = client_keys.add_client(settings, client.name, **client.limits)
    return CreatedKey(client.name, key, len(client_keys.all_clients(settings)) == 1)


def list_clients(settings: Settings) -> list[ListedClient]:
    last_uses = _last_uses(settings.journal_location)
    return [
        ListedClient(
            name=client.name,
            previous_key_expires=client.previous_key_expires,
            last_used=last_uses.get(client.name),
            **{name: getattr(client, name) for name in LIMITS},
        )
        for client in client_keys.all_clients(settings)
    ]


def _last_uses(journal_location: str) -> dict[str, float]:
    try:
        with closing(JournalReader(journal_location)) as reader:
            return reader.last_uses()
    except NotFound:
        return {}


def set_limits(settings: Settings, change: ClientChange) -> ListedClient:
    """Change the limits of a client. Running proxies apply this within two seconds."""
    given = {name: value for name, value in change.limits.items() if value is not None}
    removed: dict[str, int | None] = dict.fromkeys(change.unlimited.split(",") if change.unlimited else ())
    if both := given.keys() & removed.keys():
        raise InvalidRequest(f"{min(both)} is given and removed: give one of both")
    if not given and not removed:
        raise InvalidRequest(f"there is no limit to change: give some of {', '.join(LIMITS)}, or unlimited")
    client_keys.set_limits(settings, change.name, given | removed)
    return next(client for client in list_clients(settings) if client.name == change.name)


def rotate_key(settings: Settings, rotation: KeyRotation) -> CreatedKey:
    return CreatedKey(rotation.name, client_keys.rotate_key(settings, rotation.name, rotation.grace))


def reset_counts(settings: Settings, client: ClientName) -> None:
    client_keys.reset_counts(settings, client.name)


def remove_client(settings: Settings, client: ClientName) -> None:
    client_keys.remove_client(settings, client.name)


def list_changes(settings: Settings, limit: int | None) -> list[OperatorChange]:
    """List the newest changes of clients, responses, and pins, the last one first."""
    return [OperatorChange(**row) for row in client_keys.operator_changes(settings, limit)]
