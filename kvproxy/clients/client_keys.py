"""Clients and their API keys: from kvproxy.toml, and from `kvproxy keys`, in a file or in the PostgreSQL store."""

import hashlib
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from kvproxy.clients.change_log import operator_name, recorded_changes
from kvproxy.clients.spending_tables import SpentAndReserved, read_reserved, read_spent
from kvproxy.clients.stored_clients import (
    StoredClients,
    change_clients,
    clients_file,
    open_shared_state,
    open_spending,
    stored_clients,
)
from kvproxy.errors import InvalidRequest, SettingsError
from kvproxy.index.store_location import is_url
from kvproxy.settings import Settings
from kvproxy.settings.access import ClientSettings
from kvproxy.settings.journal import LIST_CURRENCY
from kvproxy.units import format_amount

_PREFIX = "kvp-"
_NO_LIMITS = {
    *("name", "key_sha256", "previous_key_sha256", "previous_key_expires", "counts_since", "disabled"),
}
_LIMITS = tuple(name for name in ClientSettings.model_fields if name not in _NO_LIMITS)


def all_clients(settings: Settings) -> tuple[ClientSettings, ...]:
    """Return the clients of the settings, then of `kvproxy keys`. Raises SettingsError or StoreUnavailable."""
    clients = (*settings.clients, *stored_clients(settings))
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
    with open_shared_state(settings) as shared:
        return shared is not None and bool(shared.client_settings())


def why_closed(settings: Settings) -> str | None:
    """Return why the proxy rejects all requests; None if it has clients, or requires no key."""
    if all_clients(settings) or not requires_client_key(settings):
        return None
    removed = clients_file(settings.data)
    where = f"delete {removed}" if removed.exists() else "delete the rows of the table clients in PostgreSQL"
    return (
        "no client is left, so all requests are rejected: kvproxy keys add NAME, or, to accept requests without a key,"
        f" {where} and restart the proxy"
    )


def add_client(settings: Settings, name: str, **limits: Any) -> str:
    """Add a client, and return its key, of which only the digest is stored. `limits` are fields of `ClientSettings`.

    Raises InvalidRequest if the name exists or is invalid.
    """
    return add_clients(settings, [(name, limits)])[0]


def add_clients(
    settings: Settings, clients: Sequence[tuple[str, Mapping[str, Any]]], operator: str | None = None
) -> list[str]:
    """Add clients with their limits, see `add_client`; if a client is invalid, add no client. Return their keys.

    The operator's name is for `kvproxy keys history`; None is the user of this process.
    """
    with _changing(settings, operator, create=True) as stored:
        existing = {client.name for client in stored.all}
        added: dict[str, ClientSettings] = {}
        keys = []
        for name, limits in clients:
            stored.check_not_configured(name)
            if name in existing:
                raise InvalidRequest(
                    f"there is a client {name!r} already: kvproxy keys set {name} changes its limits, and keys rotate"
                    f" {name} its key"
                )
            if name in added:
                raise InvalidRequest(f"the client {name!r} is named twice")
            keys.append(_PREFIX + secrets.token_urlsafe(32))
            added[name] = _new_client(name, keys[-1], limits)
        _check_change(settings, added.values(), [*stored.all, *added.values()])
        stored.add(list(added.values()), [_named("add", client) for client in added.values()])
        return keys


def _new_client(name: str, key: str, limits: Mapping[str, Any]) -> ClientSettings:
    given = {limit: value for limit, value in limits.items() if value is not None}
    try:
        return ClientSettings.model_validate(
            {**given, "name": name, "key_sha256": key_digest(key), "counts_since": time.time()}
        )
    except ValidationError:
        raise InvalidRequest(
            f"{name!r} is no name for a client: take up to 64 letters, digits, dots, dashes and underscores"
        ) from None


def _check_change(settings: Settings, changed: Iterable[ClientSettings], clients: Iterable[ClientSettings]) -> None:
    """Raise InvalidRequest if no changed client may have its budget, or all clients their teams."""
    try:
        check_budgets(settings, list(changed))
        _check_teams(clients)
    except SettingsError as error:
        raise InvalidRequest(error.message) from None


def set_limits(settings: Settings, name: str, limits: Mapping[str, Any], operator: str | None = None) -> ClientSettings:
    """Change limits of a client, which are fields of `ClientSettings`, and return it; None removes a limit.

    Running proxies apply this within two seconds. Raises NotFound, or InvalidRequest if kvproxy.toml defines the client.
    """
    with _changing(settings, operator) as stored:
        before = stored.find(name)
        client = before.model_copy(update=dict(limits))
        _check_change(settings, [client], [client if other.name == name else other for other in stored.all])
        changes = (
            f"{limit} {_limit_text(limit, getattr(before, limit))} -> {_limit_text(limit, limits[limit])}"
            for limit in limits
        )
        stored.replace(client, f"set limits of client {name}: {', '.join(changes)}")
        return client


def set_disabled(settings: Settings, name: str, *, disabled: bool, operator: str | None = None) -> ClientSettings:
    """Disable a client, whose requests then get 403, or enable it again, and return it. Its counts and stored responses stay.

    Running proxies apply this within two seconds. Raises NotFound, or InvalidRequest if kvproxy.toml defines the client, or if
    nothing would change.
    """
    with _changing(settings, operator) as stored:
        client, verb = stored.find(name), "disable" if disabled else "enable"
        if client.disabled == disabled:
            raise InvalidRequest(f"the client {name!r} is {verb}d already")
        changed = client.model_copy(update={"disabled": disabled})
        stored.replace(changed, f"{verb} client {name}")
        return changed


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
    return format_amount(value) if isinstance(value, float) else str(value)


def rotate_key(settings: Settings, name: str, grace: float, operator: str | None = None) -> str:
    """Replace a client's key, and return the new key; the old key stays valid for `grace` seconds.

    Raises NotFound, or InvalidRequest if kvproxy.toml defines the client.
    """
    with _changing(settings, operator) as stored:
        client, key = stored.find(name), _PREFIX + secrets.token_urlsafe(32)
        previous = {"previous_key_sha256": client.key_sha256, "previous_key_expires": time.time() + grace}
        update = {"key_sha256": key_digest(key)} | (previous if grace > 0 else dict.fromkeys(previous))
        until = f"valid until {_limit_text('expires', time.time() + grace)}" if grace > 0 else "revoked"
        stored.replace(client.model_copy(update=update), f"rotate the key of client {name}: the old key is {until}")
        return key


def reset_counts(settings: Settings, name: str, operator: str | None = None) -> None:
    """Start a client's counts of requests, tokens, and spent money again. Running proxies apply this within two seconds.

    If kvproxy.toml defines the client, and the store is a file, only its spent money. Raises NotFound, or InvalidRequest if
    such a client has no budget.
    """
    change = f"reset the counts of client {name}"
    with _changing(settings, operator) as stored:
        configured = next((configured for configured in settings.clients if configured.name == name), None)
        if configured is None:
            client = stored.find(name)
            stored.reset_counts(name)
            stored.replace(client.model_copy(update={"counts_since": time.time()}), change)
            return
        if not configured.has_budget and not is_url(settings.store_location):
            raise InvalidRequest(f"the client {name!r} is in kvproxy.toml: restart the proxy to reset its counts")
        stored.reset_counts(name)
        stored.record(change)


def remove_client(settings: Settings, name: str, operator: str | None = None) -> None:
    """Remove a client and its counts. Running proxies reject its key within two seconds.

    Raises NotFound, or InvalidRequest if kvproxy.toml defines the client, or if it is the team of clients.
    """
    with _changing(settings, operator) as stored:
        change = _named("remove", stored.find(name))
        if members := [client.name for client in stored.all if client.team == name]:
            names = ", ".join(members[:5]) + (", and more" if len(members) > 5 else "")
            raise InvalidRequest(
                f"clients have the team {name}: {names}; move or remove each of them first: kvproxy keys set {members[0]}"
                f" --unlimited team (or --team OTHER), or kvproxy keys rm {members[0]}"
            )
        # First: its streams end with the removal, and are billed then.
        stored.reset_counts(name)
        stored.remove(name, change)


def spent_and_reserved(settings: Settings) -> SpentAndReserved:
    """Return the money that each client with a budget spent, and that its requests in flight reserve.

    Raises StoreUnavailable.
    """
    with open_spending(settings) as query:
        now = time.time()
        return ({}, {}) if query is None else (read_spent(query, now), read_reserved(query, now))


def operator_changes(settings: Settings, limit: int | None) -> list[dict[str, Any]]:
    with open_shared_state(settings) as shared:
        return recorded_changes(settings.data, limit) if shared is None else shared.changes(limit)


def _changing(
    settings: Settings, operator: str | None, *, create: bool = False
) -> AbstractContextManager[StoredClients]:
    return change_clients(settings, operator_name() if operator is None else operator, create=create)


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
