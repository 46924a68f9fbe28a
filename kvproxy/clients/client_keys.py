"""Clients and their API keys: from kvproxy.toml, and from `kvproxy keys`, in a file or in the PostgreSQL store."""

import hashlib
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import TypeAdapter, ValidationError

from kvproxy.clients.change_log import operator_name, record_change, recorded_changes
from kvproxy.clients.private_file import replace_private_file
from kvproxy.clients.spending_tables import Query, SpendingFile, Spent, delete_spent, read_spent, spending_file
from kvproxy.errors import InvalidRequest, NotFound, SettingsError, StoreUnavailable
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store_location import is_url
from kvproxy.settings import Settings
from kvproxy.settings.access import ClientSettings
from kvproxy.settings.journal import LIST_CURRENCY

if TYPE_CHECKING:
    from kvproxy.clients.shared_state import SharedState

_PREFIX = "kvp-"
_LIST = TypeAdapter(list[ClientSettings])
_NO_LIMITS = {
    *("name", "key_sha256", "previous_key_sha256", "previous_key_expires", "counts_since", "disabled"),
}
_LIMITS = tuple(name for name in ClientSettings.model_fields if name not in _NO_LIMITS)


def clients_file(data: Path) -> Path:
    return data / "clients.json"


def all_clients(settings: Settings) -> tuple[ClientSettings, ...]:
    """Return the clients of the settings, then of `kvproxy keys`. Raises SettingsError or StoreUnavailable."""
    clients = (*settings.clients, *_read_clients(settings.data), *_shared_clients(settings))
    for what, values in (
        ("name", [client.name for client in clients]),
        ("key", [digest for client in clients for digest in client.digests]),
    ):
        if len(set(values)) < len(values):
            raise SettingsError(f"two clients have the same {what}: kvproxy keys ls lists them, keys rm removes one")
    _check_teams(clients)
    return clients


def _check_teams(clients: Iterable[ClientSettings]) -> None:
    known = {client.name: client for client in clients}
    for client in known.values():
        if client.team is None:
            continue
        leave = f"or kvproxy keys set {client.name} --unlimited team"
        if client.team not in known:
            raise SettingsError(
                f"the team {client.team} of the client {client.name} is no client: kvproxy keys add {client.team}, {leave}"
            )
        if known[client.team].team is not None:
            raise SettingsError(
                f"the team {client.team} of the client {client.name} has a team itself: choose a client without one, {leave}"
            )


def check_budgets(settings: Settings, clients: Sequence[ClientSettings]) -> None:
    """Raise a SettingsError if a client has a budget, but no model a price: the proxy would refuse all its requests."""
    journal = settings.journal
    limited = next((client.name for client in clients if client.has_budget), None)
    if limited is not None and not journal.has_prices:
        raise SettingsError(
            f"the client {limited} has a budget, but no model has a price in {journal.currency}, because the list prices are in"
            f' {LIST_CURRENCY}: set prices in {journal.currency} (such as [journal.prices."gpt-4o*"]), set journal.usd_rate,'
            " remove journal.currency,"
            " or remove the budget (kvproxy keys set --unlimited)"
        )


def requires_client_key(settings: Settings) -> bool:
    """Return False only if kvproxy.toml has no client, and `kvproxy keys` never added a client."""
    if settings.clients or clients_file(settings.data).exists():
        return True
    with _shared_state(settings) as shared:
        return shared is not None and bool(shared.client_settings())


def add_client(settings: Settings, name: str, **limits: Any) -> str:
    """Add a client, and return its key, of which only the digest is stored. `limits` are fields of `ClientSettings`.

    Raises InvalidRequest if the name exists or is invalid.
    """
    return add_clients(settings, [(name, limits)])[0]


def add_clients(settings: Settings, clients: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Add clients with their limits, see `add_client`; if one of them is invalid, add none. Return their keys."""
    known = all_clients(settings)
    existing = {client.name for client in known}
    added: dict[str, ClientSettings] = {}
    keys = []
    for name, limits in clients:
        if any(configured.name == name for configured in settings.clients):
            raise InvalidRequest(f"the client {name!r} is in kvproxy.toml: change it there")
        if name in existing:
            raise InvalidRequest(
                f"there is a client {name!r} already: kvproxy keys set {name} changes its limits, and keys rotate {name}"
                " its key"
            )
        if name in added:
            raise InvalidRequest(f"the client {name!r} is named twice")
        keys.append(_PREFIX + secrets.token_urlsafe(32))
        given = {limit: value for limit, value in limits.items() if value is not None}
        try:
            added[name] = ClientSettings.model_validate(
                {**given, "name": name, "key_sha256": key_digest(keys[-1]), "counts_since": time.time()}
            )
        except ValidationError:
            raise InvalidRequest(
                f"{name!r} is no name for a client: take up to 64 letters, digits, dots, dashes and underscores"
            ) from None
    check_budgets(settings, list(added.values()))
    _check_teams([*known, *added.values()])
    with _shared_state(settings) as shared:
        if shared is not None:
            for name, client in added.items():
                shared.set_client(name, client.model_dump_json(), operator_name(), _named("add", client), reset=True)
            return keys
    _write_clients(settings.data, [*_read_clients(settings.data), *added.values()])
    for client in added.values():
        record_change(settings.data, operator_name(), _named("add", client))
    return keys


def set_limits(settings: Settings, name: str, limits: Mapping[str, Any]) -> None:
    """Change limits of a client, which are fields of `ClientSettings`; None removes a limit.

    Running proxies apply this within two seconds. Raises NotFound, or InvalidRequest if kvproxy.toml defines the client.
    """
    before = _find_client(settings, name)
    client = before.model_copy(update=dict(limits))
    check_budgets(settings, [client])
    _check_teams(client if other.name == name else other for other in all_clients(settings))
    changes = (
        f"{limit} {_limit_text(limit, getattr(before, limit))} -> {_limit_text(limit, limits[limit])}"
        for limit in limits
    )
    _store_client(settings, client, f"set limits of client {name}: {', '.join(changes)}")


def set_disabled(settings: Settings, name: str, *, disabled: bool) -> None:
    """Disable a client, whose requests then get 403, or enable it again. Its counts and stored responses stay.

    Running proxies apply this within two seconds. Raises NotFound, or InvalidRequest if kvproxy.toml defines the client, or if
    nothing would change.
    """
    client, verb = _find_client(settings, name), "disable" if disabled else "enable"
    if client.disabled == disabled:
        raise InvalidRequest(f"the client {name!r} is {verb}d already")
    _store_client(settings, client.model_copy(update={"disabled": disabled}), f"{verb} client {name}")


def limits_text(limits: Mapping[str, Any]) -> str:
    """Format limits, which are fields of `ClientSettings`, for people."""
    return ", ".join(f"{name} {_limit_text(name, value)}" for name, value in limits.items())


def _named(verb: str, client: ClientSettings) -> str:
    """Return a change of a whole client, such as `add client a: requests_per_minute 50`."""
    limits = {limit: value for limit in _LIMITS if (value := getattr(client, limit)) not in (None, ())}
    return f"{verb} client {client.name}{': ' if limits else ''}{limits_text(limits)}"


def _limit_text(name: str, value: Any) -> str:
    if value is None or value == ():
        return "none"
    if name == "expires":
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds")
    if isinstance(value, tuple):
        return " ".join(value)
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def rotate_key(settings: Settings, name: str, grace: float) -> str:
    """Replace a client's key, and return the new key; the old key stays valid for `grace` seconds.

    Raises NotFound, or InvalidRequest if kvproxy.toml defines the client.
    """
    client = _find_client(settings, name)
    key = _PREFIX + secrets.token_urlsafe(32)
    previous = {"previous_key_sha256": client.key_sha256, "previous_key_expires": time.time() + grace}
    update = {"key_sha256": key_digest(key)} | (previous if grace > 0 else dict.fromkeys(previous))
    until = f"valid until {_limit_text('expires', time.time() + grace)}" if grace > 0 else "revoked"
    _store_client(
        settings, client.model_copy(update=update), f"rotate the key of client {name}: the old key is {until}"
    )
    return key


def reset_counts(settings: Settings, name: str) -> None:
    """Start a client's counts of requests, tokens, and spent money again. Running proxies apply this within two seconds.

    If kvproxy.toml defines the client, and the store is a file, only its spent money. Raises NotFound, or InvalidRequest if
    such a client has no budget.
    """
    configured = next((configured for configured in settings.clients if configured.name == name), None)
    if configured is not None:
        with _shared_state(settings) as shared:
            if shared is None and configured.has_budget:
                _delete_spent(settings, name)
                record_change(settings.data, operator_name(), f"reset the counts of client {name}")
                return
            if shared is None:
                raise InvalidRequest(f"the client {name!r} is in kvproxy.toml: restart the proxy to reset its counts")
            shared.reset_quota(name, operator_name())
        return
    client = _find_client(settings, name).model_copy(update={"counts_since": time.time()})
    _delete_spent(settings, name)
    _store_client(settings, client, f"reset the counts of client {name}", reset=True)


def remove_client(settings: Settings, name: str) -> None:
    """Remove a client and its counts. Running proxies reject its key within two seconds.

    Raises NotFound, or InvalidRequest if kvproxy.toml defines the client, or if it is the team of clients.
    """
    change = _named("remove", _find_client(settings, name))
    if members := [client.name for client in all_clients(settings) if client.team == name]:
        names = ", ".join(members[:5]) + (", and more" if len(members) > 5 else "")
        raise InvalidRequest(
            f"clients have the team {name}: {names}; move or remove each of them first: kvproxy keys set {members[0]}"
            f" --unlimited team (or --team OTHER), or kvproxy keys rm {members[0]}"
        )
    clients = _read_clients(settings.data)
    if any(client.name == name for client in clients):
        _write_clients(settings.data, [client for client in clients if client.name != name])
        _delete_spent(settings, name)
        record_change(settings.data, operator_name(), change)
        with _shared_state(settings) as shared:
            if shared is not None:
                shared.reset_quota(name, operator_name())
        return
    with _shared_state(settings) as shared:
        assert shared is not None
        shared.set_client(name, None, operator_name(), change)


def spent_money(settings: Settings) -> dict[str, Spent]:
    """Return what each client with a budget spent. Raises StoreUnavailable."""
    with _spending(settings) as query:
        try:
            return {} if query is None else read_spent(query, time.time())
        except CacheStoreError as error:
            raise StoreUnavailable(str(error)) from None


def operator_changes(settings: Settings, limit: int | None) -> list[dict[str, Any]]:
    with _shared_state(settings) as shared:
        return recorded_changes(settings.data, limit) if shared is None else shared.changes(limit)


def _find_client(settings: Settings, name: str) -> ClientSettings:
    for client in (*_read_clients(settings.data), *_shared_clients(settings)):
        if client.name == name:
            return client
    if any(configured.name == name for configured in settings.clients):
        raise InvalidRequest(f"the client {name!r} is in kvproxy.toml: change it there")
    raise NotFound(f"no client {name!r}: kvproxy keys ls lists them")


def _store_client(settings: Settings, client: ClientSettings, change: str, *, reset: bool = False) -> None:
    clients = list(_read_clients(settings.data))
    index = next((index for index, other in enumerate(clients) if other.name == client.name), len(clients))
    with _shared_state(settings) as shared:
        if shared is not None and index == len(clients):
            shared.set_client(client.name, client.model_dump_json(), operator_name(), change, reset=reset)
            return
        if shared is not None and reset:
            shared.reset_quota(client.name, operator_name())
    clients[index : index + 1] = [client]
    _write_clients(settings.data, clients)
    record_change(settings.data, operator_name(), change)


def _delete_spent(settings: Settings, name: str) -> None:
    with _spending(settings) as query:
        if query is not None:
            delete_spent(query, name)


@contextmanager
def _spending(settings: Settings) -> "Iterator[Query | None]":
    """Open the table of spent money; None if it does not exist yet."""
    if is_url(settings.store_location):
        with _shared_state(settings) as shared:
            assert shared is not None
            yield shared.spending.query
    elif spending_file(settings.data).exists():
        with closing(SpendingFile(settings.data)) as file:
            yield file.query
    else:
        yield None


@contextmanager
def _shared_state(settings: Settings) -> "Iterator[SharedState | None]":
    if not is_url(settings.store_location):
        yield None
        return
    from kvproxy.clients.shared_state import SharedState
    from kvproxy.index.store import open_postgres

    try:
        with closing(open_postgres(settings.store_location)) as database:
            yield SharedState(database)
    except CacheStoreError as error:
        raise StoreUnavailable(str(error)) from None


def _shared_clients(settings: Settings) -> Sequence[ClientSettings]:
    with _shared_state(settings) as shared:
        texts = () if shared is None else shared.client_settings()
        return [ClientSettings.model_validate_json(text) for text in texts if text is not None]


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _read_clients(data: Path) -> Sequence[ClientSettings]:
    file = clients_file(data)
    try:
        return _LIST.validate_json(file.read_bytes())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None
    except ValidationError as error:
        raise SettingsError(f"cannot read {file}: {error.errors()[0]['msg']}; restore it from a backup") from None


def _write_clients(data: Path, clients: Sequence[ClientSettings]) -> None:
    file = clients_file(data)
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_private_file(
            file, orjson.dumps([client.model_dump() for client in clients], option=orjson.OPT_INDENT_2)
        )
    except OSError as error:
        raise SettingsError(f"cannot write {file}: {error.strerror}") from None
