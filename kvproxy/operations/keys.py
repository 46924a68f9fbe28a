"""The operations on clients and their API keys: beside the files of a proxy, in PostgreSQL, or over HTTP."""

import csv
import io
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from kvproxy.clients import client_keys
from kvproxy.clients.running_clients import RunningClients
from kvproxy.clients.spending_tables import Spent, SpentAndReserved, add_spent, budgets_of
from kvproxy.errors import InvalidRequest, KvproxyError, NotFound, SettingsError, StoreUnavailable
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.record import client_name
from kvproxy.journal.saving_groups import grouped_totals
from kvproxy.journal.savings import savings
from kvproxy.journal.sums_filter import SumsFilter, sums_filter
from kvproxy.layers import CACHES
from kvproxy.operations.keys_parameters import (
    LIMITS,
    ChangesPage,
    ClientChange,
    ClientLimits,
    ClientName,
    ClientUsageQuery,
    KeyRotation,
    NewClient,
)
from kvproxy.operations.operation import CsvFile, NoParameters, Operation, Parameters, Result, RowLimits, operation
from kvproxy.operations.parameters import declared_parameters
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import Settings
from kvproxy.settings.access import ClientSettings
from kvproxy.settings.unknown_models import unknown_models_of_client

_COUNTS = ("requests", "refused", "unpriced", "estimated", "unreported", "tokens")


@dataclass(frozen=True, slots=True)
class KeysAccess:
    """The clients of a proxy with these settings, and the name of the operator who changes them.

    `running` is None without a running proxy.
    """

    settings: Settings
    operator: str
    running: RunningClients | None = None


class KeysClient(Protocol):
    """Performs the operations of this module: a `ProxyClient`, or `DirectKeys`."""

    def perform(
        self, operation: Operation[KeysAccess, Parameters, Result], parameters: Parameters, body: object = None, /
    ) -> Result: ...


@dataclass(frozen=True, slots=True)
class DirectKeys:
    """The clients in the files, or in PostgreSQL, without a proxy."""

    access: KeysAccess

    def perform(
        self, operation: Operation[KeysAccess, Parameters, Result], parameters: Parameters, body: object = None, /
    ) -> Result:
        return operation(self.access, parameters, *(() if body is None else (body,)))


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new API key.

    Attributes:
        is_first: the client is the first one, so the proxy rejects requests without a key from now on.
        notes: sentences about limits without effect, and about an expired key.
    """

    name: str
    key: str
    is_first: bool = False
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class LimitedClient(ClientLimits, ClientName):
    """A client with its limits. `expires` is in seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class ChangedClient(LimitedClient):
    """A client with its new limits. `disabled`: whether its requests get 403. `notes` are about limits without effect."""

    disabled: bool
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ListedClient(LimitedClient):
    """A client with its usage in the journal; None if the journal cannot be read.

    Attributes:
        disabled: whether its requests get 403.
        previous_key_expires: end of its previous key's validity in seconds since the epoch; None after it.
        spent_today, left_today, spent_this_month, left_this_month: what counts for its budget in this UTC day or month, and what
            is left, in `journal.currency`; None without such a budget.
        reserved: the most that its requests in flight may cost, which its budgets do not have left either; None without a budget.
        requests: number of its requests, also of those that a cache answered, and of `refused` ones, without those that warmed
            the cache. A team has the requests, tokens, and money of clients while they had the team, too.
        tokens: tokens that quotas count: of prompts, also reused ones, and of responses; estimated if not reported.
        refused: number of its requests that the proxy refused.
        unpriced, estimated, unreported: see `BillRow`.
        spent: price of its requests in `journal.currency`; None without prices.
        last_used: time of the last request in seconds since the epoch.
    """

    disabled: bool
    previous_key_expires: float | None
    spent_today: float | None = None
    left_today: float | None = None
    spent_this_month: float | None = None
    left_this_month: float | None = None
    reserved: float | None = None
    requests: int | None = None
    refused: int | None = None
    unpriced: int | None = None
    estimated: int | None = None
    unreported: int | None = None
    tokens: int | None = None
    spent: float | None = None
    last_used: float | None = None


@dataclass(frozen=True, slots=True)
class ClientList:
    """All clients, and the currency of their money.

    Attributes:
        problem: why their usage is unknown; None if it is known.
        outage: why the clients and their money are those in the memory of the proxy; None if they are those of the store.
        closed: why the proxy rejects all requests; None if it has clients, or requires no key.
    """

    clients: list[ListedClient]
    currency: str
    problem: str | None = None
    outage: str | None = None
    closed: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """A change by an operator. `changed` is in seconds since the epoch."""

    changed: float
    operator: str
    change: str


@operation("POST", "/keys")
def add_client(access: KeysAccess, client: NewClient) -> CreatedKey:
    """Create a client. The response has its key, which the proxy does not store."""
    return _add(access, [client])[0]


@operation("POST", "/keys/many")
def add_clients(access: KeysAccess, parameters: NoParameters, file: CsvFile) -> list[CreatedKey]:
    """Create the clients of a CSV file with a head: `name`, and any limits. If a line is invalid, create no client."""
    return _add(access, _read_clients(file))


def _add(access: KeysAccess, clients: Sequence[NewClient]) -> list[CreatedKey]:
    settings = access.settings
    was_open = not client_keys.requires_client_key(settings)
    keys = client_keys.add_clients(settings, [(client.name, client.limits) for client in clients], access.operator)
    stored = {client.name: client for client in client_keys.all_clients(settings)}

    def notes(name: str) -> Sequence[str]:
        # Another operator may have removed the client already.
        return unknown_models_of_client(settings, stored[name]) if name in stored else ()

    return [
        CreatedKey(client.name, key, was_open, notes(client.name)) for client, key in zip(clients, keys, strict=True)
    ]


def _read_clients(file: bytes) -> list[NewClient]:
    try:
        rows = csv.DictReader(io.StringIO(file.decode("utf-8-sig"), newline=""))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the file of clients is not UTF-8 (byte {error.start + 1:,}): save it as UTF-8") from None
    known = {parameter.name: parameter for parameter in declared_parameters(NewClient)}
    columns = rows.fieldnames or []
    if "name" not in columns or (unknown := [column for column in columns if column not in known]):
        what = "the first line has no column name" if "name" not in columns else f"unknown column {unknown[0]!r}"
        raise InvalidRequest(f"{what}: the columns are {', '.join(known)}")
    clients = []
    for row in rows:
        if any(row.pop(None, ())):
            raise InvalidRequest(f"line {rows.line_num}: more values than columns: put commas into double quotes")
        try:
            given = {name: known[name].parse(value) for name, value in row.items() if value}
        except ValueError as error:
            raise InvalidRequest(f"line {rows.line_num}: {error}") from None
        if "name" not in given:
            raise InvalidRequest(f"line {rows.line_num}: the name is missing")
        clients.append(NewClient(**given))
    if not clients:
        raise InvalidRequest("there is no client after the first line: add a line for each one")
    return clients


def list_clients(settings: Settings, query: ClientUsageQuery = ClientUsageQuery()) -> list[ListedClient]:
    """List the clients with their usage.

    Without a journal there was no request. If the journal cannot be read, their usage is unknown, see `usage_problem`.
    Raises InvalidRequest for a period in the future.
    """
    return _list(settings, query, client_keys.all_clients(settings), client_keys.spent_and_reserved(settings))


def _list(
    settings: Settings, query: ClientUsageQuery, clients: Sequence[ClientSettings], money: SpentAndReserved
) -> list[ListedClient]:
    usage: dict[str, dict[str, Any]] | None
    selection = sums_filter(query.since)
    try:
        usage = _usage(settings, selection)
    except NotFound:
        usage = {}
    except KvproxyError:
        usage = None
    (spent, reserved), none = money, dict.fromkeys(_COUNTS, 0)
    return [
        _listed(
            client,
            spent.get(client.name, Spent()),
            reserved.get(client.name, 0.0),
            {} if usage is None else usage.get(client.name, none),
        )
        for client in clients
    ]


@operation("GET", "/keys")
def list_keys(access: KeysAccess, query: ClientUsageQuery) -> ClientList:
    """List the clients with their usage, budgets, and limits, without keys or digests.

    While PostgreSQL fails, a running proxy lists the clients and the money that it knows.
    """
    settings, running = access.settings, access.running
    outage = closed = None
    try:
        clients, money = client_keys.all_clients(settings), client_keys.spent_and_reserved(settings)
        closed = client_keys.why_closed(settings)
        if running is not None:
            clients = tuple(map(running.switched, clients))
            money = _add_money(money, running.unwritten_money())
    except StoreUnavailable as error:
        if running is None:
            raise
        clients, money, outage = tuple(running.known_clients()), running.known_money(), error.message
    listed = _list(settings, query, clients, money)
    is_unknown = bool(listed) and listed[0].requests is None
    problem = usage_problem(settings) if is_unknown else None
    return ClientList(listed, settings.journal.currency, problem, outage, closed)


def _add_money(money: SpentAndReserved, more: SpentAndReserved) -> SpentAndReserved:
    (spent, reserved), (more_spent, more_reserved) = money, more
    names = {*reserved, *more_reserved}
    return add_spent(spent, more_spent), {name: reserved.get(name, 0) + more_reserved.get(name, 0) for name in names}


def _listed(client: ClientSettings, spent: Spent, reserved: float, usage: Mapping[str, Any]) -> ListedClient:
    budgets: dict[str, Any] = {"reserved": reserved if client.has_budget else None}
    for budget in budgets_of(client, spent):
        period = {"day": "today", "month": "this_month"}[budget.period]
        budgets |= {f"spent_{period}": budget.spent, f"left_{period}": budget.remaining}
    expires = client.previous_key_expires
    is_valid = expires is not None and time.time() < expires
    state: dict[str, Any] = {"disabled": client.disabled, "previous_key_expires": expires if is_valid else None}
    return ListedClient(name=client.name, **state, **_limits(client), **budgets, **usage)


def _limits(client: ClientSettings) -> dict[str, Any]:
    return {name: getattr(client, name) for name in LIMITS} | {"models": ",".join(client.models) or None}


def usage_problem(settings: Settings) -> str | None:
    """Return why the journal cannot be read; None if it can, or does not exist."""
    try:
        JournalReader(settings.journal_location).close()
    except NotFound:
        return None
    except KvproxyError as error:
        return error.message
    return None


def _usage(settings: Settings, selection: SumsFilter) -> dict[str, dict[str, Any]]:
    """Return the fields of `ListedClient` that the journal has, by client."""
    usages: defaultdict[str, dict[str, Any]] = defaultdict(lambda: dict.fromkeys(_COUNTS, 0))
    prices = ModelPrices(settings.journal)
    with closing(JournalReader(settings.journal_location)) as reader:
        _add_usage(reader, "tenant", prices, selection, usages)
        _add_usage(reader, "team", prices, replace(selection, by_members=True), usages)
    return usages


def _add_usage(
    reader: JournalReader,
    by: Literal["tenant", "team"],
    prices: ModelPrices,
    selection: SumsFilter,
    usages: Mapping[str, dict[str, Any]],
) -> None:
    client_of = client_name if by == "tenant" else str
    for row in grouped_totals(reader, by, selection):
        if (name := client_of(row.name)) is None:
            continue
        usage = usages[name]
        usage["requests"] += 0 if row.layer == "warming" else row.requests
        usage["refused"] += row.requests if row.layer == "refused" else 0
        if row.layer not in CACHES:
            usage["tokens"] += row.prompt_tokens + row.completion_tokens
            usage["tokens"] += row.estimated_prompt_tokens + row.estimated_completion_tokens
    for saving in savings(reader, by, prices, selection=selection):
        if (name := client_of(saving.name)) is None:
            continue
        usage = usages[name]
        usage["unpriced"] += saving.unpriced_requests
        usage["estimated"] += saving.estimated_requests
        usage["unreported"] += saving.unreported_requests
        if saving.spent is not None:
            usage["spent"] = usage.get("spent", 0.0) + saving.spent
    for name, used in reader.last_uses("client" if by == "tenant" else by).items():
        usages[name]["last_used"] = max(used, usages[name].get("last_used", used))


@operation("PATCH", "/keys/{name}")
def set_limits(access: KeysAccess, change: ClientChange) -> ChangedClient:
    """Change the limits of a client, and return it. Running proxies apply this within two seconds."""
    given = {name: value for name, value in change.limits.items() if value is not None}
    removed: dict[str, Any] = dict.fromkeys(change.unlimited.split(",") if change.unlimited else ())
    if both := given.keys() & removed.keys():
        raise InvalidRequest(f"{min(both)} is given and removed: give one of both")
    if not given and not removed:
        raise InvalidRequest(f"there is no limit to change: give some of {', '.join(LIMITS)}, or unlimited")
    limits = given | removed | ({"models": ()} if "models" in removed else {})
    return _changed(access, client_keys.set_limits(access.settings, change.name, limits, access.operator))


def _changed(access: KeysAccess, client: ClientSettings) -> ChangedClient:
    notes = unknown_models_of_client(access.settings, client)
    return ChangedClient(name=client.name, **_limits(client), disabled=client.disabled, notes=notes)


@operation("POST", "/keys/{name}/rotate")
def rotate_key(access: KeysAccess, rotation: KeyRotation) -> CreatedKey:
    """Create a new key of a client. The old key stays valid for a day, or for `grace`."""
    name = rotation.name
    key = client_keys.rotate_key(access.settings, name, rotation.grace, access.operator)
    clients = client_keys.all_clients(access.settings)
    has_expired = any(client.name == name and client.has_expired(time.time()) for client in clients)
    note = f"the client {name} has expired, so its new key is rejected: kvproxy keys set {name} --expires DATE"
    return CreatedKey(name, key, notes=[note] if has_expired else [])


@operation("POST", "/keys/{name}/disable")
def disable_client(access: KeysAccess, client: ClientName) -> ChangedClient:
    """Reject the requests of a client, until it is enabled again."""
    return _set_disabled(access, client.name, disabled=True)


@operation("POST", "/keys/{name}/enable")
def enable_client(access: KeysAccess, client: ClientName) -> ChangedClient:
    """Accept the requests of a disabled client again."""
    return _set_disabled(access, client.name, disabled=False)


def _set_disabled(access: KeysAccess, name: str, *, disabled: bool) -> ChangedClient:
    running, notes = access.running, []
    try:
        client = client_keys.set_disabled(access.settings, name, disabled=disabled, operator=access.operator)
    except (StoreUnavailable, SettingsError) as error:
        if running is None:
            error.message += "; a running proxy changes it in its memory with --url, which needs no store"
            raise
        client = running.switch(name, access.operator, disabled=disabled)
        notes = [f"only this proxy was changed, in its memory: {error.message}; it stores the change as soon as it can"]
    except InvalidRequest:
        # The stored client is so already, but the proxy may not use that state.
        if running is None or not running.end_switch(name):
            raise
        client = next(each for each in client_keys.all_clients(access.settings) if each.name == name)
    return ChangedClient(name=name, **_limits(client), disabled=client.disabled, notes=notes)


@dataclass(frozen=True, slots=True)
class ResetCounts:
    """The name of the client whose counts start again."""

    reset: str


@operation("POST", "/keys/{name}/reset")
def reset_counts(access: KeysAccess, client: ClientName) -> ResetCounts:
    """Start a client's counts of requests, tokens, and money again."""
    client_keys.reset_counts(access.settings, client.name, access.operator)
    return ResetCounts(client.name)


@dataclass(frozen=True, slots=True)
class RemovedClient:
    """The name of the removed client. `closed`: why the proxy rejects all requests from now on; None if clients are left."""

    removed: str
    closed: str | None = None


@operation("DELETE", "/keys/{name}")
def remove_client(access: KeysAccess, client: ClientName) -> RemovedClient:
    """Remove a client with its counts, and revoke its key."""
    client_keys.remove_client(access.settings, client.name, access.operator)
    return RemovedClient(client.name, client_keys.why_closed(access.settings))


@operation("GET", "/keys/history", rows=RowLimits(50, 10_000))
def list_changes(access: KeysAccess, page: ChangesPage) -> list[OperatorChange]:
    """List the newest changes of clients and stored responses, the last one first."""
    return [OperatorChange(**row) for row in client_keys.operator_changes(access.settings, page.limit or None)]


KEY_OPERATIONS = (
    *(list_keys, list_changes, add_client, add_clients, set_limits, rotate_key, disable_client),
    *(enable_client, reset_counts, remove_client),
)
