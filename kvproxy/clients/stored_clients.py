"""Stores the clients of `kvproxy keys`, in a file or in the PostgreSQL store, and lets one operator at a time change them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from pydantic import TypeAdapter, ValidationError

from kvproxy.clients.change_log import ChangeLog, locked_changes
from kvproxy.clients.private_file import private_replacement
from kvproxy.clients.spending_tables import Query, SpendingFile, delete_spent, spending_file
from kvproxy.errors import OTHER_FOLDER, InvalidRequest, NotFound, SettingsError, StoreUnavailable, file_error
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store_location import is_url
from kvproxy.settings import Settings
from kvproxy.settings.access import ClientSettings

if TYPE_CHECKING:
    from kvproxy.clients.shared_state import SharedClients, SharedState

_LIST = TypeAdapter(list[ClientSettings])


def clients_file(data: Path) -> Path:
    return data / "clients.json"


def stored_clients(settings: Settings) -> list[ClientSettings]:
    """Return the clients of the file, then of PostgreSQL. Raises SettingsError or StoreUnavailable."""
    with open_shared_state(settings) as shared:
        return [*_read_clients(settings.data), *(() if shared is None else _parse(shared.client_settings()))]


def check_stored(settings: Settings, name: str) -> None:
    """Raise InvalidRequest if kvproxy.toml defines the client."""
    if any(configured.name == name for configured in settings.clients):
        raise InvalidRequest(f"the client {name!r} is in kvproxy.toml: change it there")


class StoredClients:
    """The clients of `kvproxy keys`, locked for a change.

    A proxy may have had its file of clients before its store moved to PostgreSQL; these clients stay in the file.

    Attributes:
        stored: all these clients.
    """

    def __init__(
        self, settings: Settings, operator: str, shared: "SharedClients | None", log: ChangeLog | None
    ) -> None:
        self._settings = settings
        self._operator = operator
        self._shared = shared
        self._log = log
        self._in_file = _read_clients(settings.data)
        self.stored: tuple[ClientSettings, ...] = (
            *self._in_file,
            *(() if shared is None else _parse(shared.settings())),
        )

    @property
    def all(self) -> tuple[ClientSettings, ...]:
        """The clients of kvproxy.toml, and the stored ones."""
        return (*self._settings.clients, *self.stored)

    def find(self, name: str) -> ClientSettings:
        """Return a stored client. Raises NotFound, or InvalidRequest if kvproxy.toml defines it."""
        for client in self.stored:
            if client.name == name:
                return client
        self.check_not_configured(name)
        raise NotFound(f"no client {name!r}: kvproxy keys ls lists them")

    def check_not_configured(self, name: str) -> None:
        """Raise InvalidRequest if kvproxy.toml defines the client."""
        check_stored(self._settings, name)

    def add(self, added: Sequence[ClientSettings], changes: Sequence[str]) -> None:
        """Store new clients; if that fails, store no client."""
        if self._shared is None:
            self._write_file([*self._in_file, *added], changes)
            return
        for client in added:
            self._shared.set(client.name, client.model_dump_json())
            self._shared.reset_counts(client.name)
        self._record(changes)

    def replace(self, client: ClientSettings, change: str) -> None:
        """Store a client that `find` returned with another content."""
        if any(client.name == other.name for other in self._in_file):
            self._write_file([client if client.name == other.name else other for other in self._in_file], [change])
            return
        assert self._shared is not None
        self._shared.set(client.name, client.model_dump_json())
        self._record([change])

    def remove(self, name: str, change: str) -> None:
        """Remove a client that `find` returned."""
        if any(name == other.name for other in self._in_file):
            self._write_file([other for other in self._in_file if name != other.name], [change])
            return
        assert self._shared is not None
        self._shared.set(name, None)
        self._record([change])

    def reset_counts(self, name: str) -> None:
        """Delete the counts and the spent money of a client. Without PostgreSQL, a proxy has the other counts in its memory."""
        if self._shared is not None:
            self._shared.reset_counts(name)
        elif spending_file(self._settings.data).exists():
            with _explained_errors(), closing(SpendingFile(self._settings.data)) as file:
                delete_spent(file.query, name)

    def record(self, change: str) -> None:
        """Record a change of a client that kvproxy.toml defines."""
        self._record([change])

    def _record(self, changes: Sequence[str]) -> None:
        record = self._shared.record if self._shared is not None else None if self._log is None else self._log.record
        assert record is not None
        for change in changes:
            record(self._operator, change)

    def _write_file(self, clients: Sequence[ClientSettings], changes: Sequence[str]) -> None:
        file = clients_file(self._settings.data)
        content = orjson.dumps([client.model_dump() for client in clients], option=orjson.OPT_INDENT_2)
        try:
            # If the change cannot be recorded, for example on a full disk, the clients stay as they are.
            with private_replacement(file, content):
                self._record(changes)
        except OSError as error:
            raise file_error("write", file, error, OTHER_FOLDER) from None


@contextmanager
def change_clients(settings: Settings, operator: str, *, create: bool = False) -> Iterator[StoredClients]:
    """Lock the stored clients for a change by an operator: of all processes with the data folder, or with the database.

    With PostgreSQL, the change is one transaction. `create` creates a missing data folder. Raises SettingsError,
    StoreUnavailable, or NotFound.
    """
    data, log = settings.data, None
    with ExitStack() as opened:
        shared = opened.enter_context(open_shared_state(settings))
        if shared is None or clients_file(data).exists():
            if create:
                _make_folder(data)
            elif not data.is_dir():
                raise NotFound(f"there is no data folder {data}, and no client: check --data")
            log = opened.enter_context(locked_changes(data))
        clients = None if shared is None else opened.enter_context(shared.changing_clients())
        yield StoredClients(settings, operator, clients, log)


def _make_folder(data: Path) -> None:
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise file_error("create", data, error, OTHER_FOLDER) from None


@contextmanager
def open_shared_state(settings: Settings) -> "Iterator[SharedState | None]":
    """Open the state that proxies share in PostgreSQL; None if the store is a file. Raises StoreUnavailable."""
    if not is_url(settings.store_location):
        yield None
        return
    from kvproxy.clients.shared_state import SharedState
    from kvproxy.index.store import open_postgres

    with _explained_errors(), closing(open_postgres(settings.store_location)) as database:
        yield SharedState(database)


@contextmanager
def open_spending(settings: Settings) -> "Iterator[Query | None]":
    """Open the table of spent money; None if it does not exist yet. Raises StoreUnavailable."""
    if is_url(settings.store_location):
        with open_shared_state(settings) as shared:
            assert shared is not None
            yield shared.spending.query
    elif spending_file(settings.data).exists():
        with _explained_errors(), closing(SpendingFile(settings.data)) as file:
            yield file.query
    else:
        yield None


@contextmanager
def _explained_errors() -> Iterator[None]:
    try:
        yield
    except CacheStoreError as error:
        raise StoreUnavailable(str(error)) from None


def _parse(texts: Sequence[str | None]) -> list[ClientSettings]:
    return [ClientSettings.model_validate_json(text) for text in texts if text is not None]


def _read_clients(data: Path) -> Sequence[ClientSettings]:
    file = clients_file(data)
    try:
        return _LIST.validate_json(file.read_bytes())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise file_error("read", file, error, OTHER_FOLDER) from None
    except ValidationError as error:
        raise SettingsError(f"cannot read {file}: {error.errors()[0]['msg']}; restore it from a backup") from None
