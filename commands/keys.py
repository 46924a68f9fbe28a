"""`kvproxy keys`: clients and their API keys."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.formatting import Formatted, format_age, format_size, local_time, money, table_time
from kvproxy.commands.options import PRICES_MAY_DIFFER, Data, LimitOrAll, SharedStore, load_settings
from kvproxy.commands.output import Output, print_note, text_output
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.tables import Column, ListLayout, Row, default_limit, number_column, table_output, text_column
from kvproxy.errors import SettingsError
from kvproxy.index.store_location import is_url
from kvproxy.operations.client import ProxyClient, configured_token, used_data_folder
from kvproxy.operations.keys_parameters import (
    LIMITS,
    ChangesPage,
    ClientChange,
    ClientName,
    ClientUsageQuery,
    KeyRotation,
    NewClient,
)
from kvproxy.operations.operation import CsvFile, NoParameters, fields_of
from kvproxy.units import format_amount

if TYPE_CHECKING:
    from kvproxy.operations.keys import KeysClient, ListedClient
    from kvproxy.settings import Settings


@dataclass(frozen=True)
class KeysPlace:
    """Where the clients are: in a data folder, in a store of several proxies, or behind the URL of a running proxy."""

    url: Annotated[
        str | None, Option("--url", help="Ask the running proxy at this URL, instead of its files or its database.")
    ] = None
    token: Annotated[
        str | None, Option("--token", envvar="KVPROXY_ADMIN_TOKEN", help="Admin token of the proxy at --url.")
    ] = None
    store: SharedStore = None
    data: Data = None

    def open(self) -> "KeysClient":
        if self.url is not None:
            if self.data is not None or self.store is not None:
                raise BadParameter("give one of --url, --data, and --store")
            return ProxyClient(self.url, self.token or configured_token(self.url))
        from kvproxy.clients.change_log import operator_name
        from kvproxy.operations.keys import DirectKeys, KeysAccess

        return DirectKeys(KeysAccess(self._settings, operator_name()))

    @property
    def folder(self) -> str:
        return self.url or str(self._settings.data)

    @property
    def owner(self) -> str:
        """What holds the clients: the data folder of one proxy, or the database of all its proxies."""
        if self.url is not None or not is_url(store := self._settings.store_location):
            return self.folder
        from kvproxy.index.store.postgres.database import display_name

        return f"all proxies on {display_name(store)}"

    @property
    def prices_may_differ(self) -> bool:
        from kvproxy.operations.journal import prices_may_differ

        return self.url is None and prices_may_differ(self._settings)

    @property
    def refusal(self) -> str:
        if self.url is not None:
            return f"the proxy at {self.url} rejects requests"
        is_shared = is_url(self._settings.store_location)
        return f"{self.owner} reject requests" if is_shared else f"a proxy of {self.owner} rejects requests"

    @cached_property
    def _settings(self) -> "Settings":
        try:
            return self._load_settings()
        except SettingsError as error:
            hint = "this command needs no valid settings with the --url of a running proxy, and its --token"
            error.message += f"\n{hint}"
            raise

    def _load_settings(self) -> "Settings":
        if self.store is not None:
            return load_settings(data=self.data, store=self.store)
        folder = used_data_folder(self.data)
        if folder != self.data:
            print_note(f"data folder of the running proxy: {folder}")
        return load_settings(data=folder)


app = CommandGroup("keys", help="Manage clients and their API keys.")


@app.subcommand
def add(client: NewClient, place: KeysPlace) -> Output:
    """Create a client and print its API key.

    The key is shown only once: the proxy stores its digest. As soon as a client exists, the proxy rejects requests without a
    valid key.

    Example: kvproxy keys add search-team --requests-per-minute 600
    """
    from kvproxy.operations.keys import add_client

    created = place.open().perform(add_client, client)
    if created.is_first:
        print_note(f"the first client: from now on, {place.refusal} without a key")
    _print_notes(created.notes)
    return text_output({"name": created.name, "key": created.key}, created.key)


@app.subcommand
def add_many(
    file: Annotated[
        Path, Argument(help="CSV with a head: name, and any limits such as tokens_per_minute; - is stdin.")
    ],
    place: KeysPlace,
) -> Output:
    """Create the clients of a CSV file, and print their keys.

    The columns of the file are the options of `keys add`. Separate several models by commas, in double quotes: below the
    header `name,models`, a line is `ben,"big,small"`. If a line is invalid, no client is created. The keys are shown only
    once.

    Example: kvproxy keys add-many teams.csv > keys.csv
    """
    from kvproxy.commands.files import read_bytes
    from kvproxy.operations.keys import add_clients

    created = place.open().perform(add_clients, NoParameters(), CsvFile(read_bytes(file)))
    if created and created[0].is_first:
        print_note(f"the first clients: from now on, {place.refusal} without a key")
    _print_notes(note for client in created for note in client.notes)
    rows = [{"name": client.name, "key": client.key} for client in created]
    return text_output(rows, "\n".join(["name,key", *(f"{client.name},{client.key}" for client in created)]))


@app.subcommand
def set_(change: ClientChange, place: KeysPlace) -> Output:
    """Change the limits of a client.

    Other limits, the key, and the counts stay. Running proxies apply this within two seconds.

    Example: kvproxy keys set search-team --tokens-per-minute 200000 --unlimited requests_per_minute
    """
    from kvproxy.clients.client_keys import limits_text
    from kvproxy.operations.keys import set_limits

    changed = place.open().perform(set_limits, change)
    _print_notes(changed.notes)
    return text_output(
        {name: value for name, value in fields_of(changed).items() if name in ("name", *LIMITS)},
        f"{changed.name}: {limits_text(changed.limits)}",
    )


def _exceptions(client: "ListedClient") -> Row:
    """Return the cells for requests that are refused, or whose money is unknown or an estimate."""
    return {
        number_column(name.capitalize(), name, optional=True, hides_empty=True): Formatted(
            f"{count:,}" if (count := getattr(client, name)) else "", count
        )
        for name in ("refused", "estimated", "unpriced", "unreported")
    }


@app.subcommand
def ls(
    query: ClientUsageQuery,
    *,
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.keys:ListedClient")],
    place: KeysPlace,
) -> Output:
    """List clients with their usage, limits, and last use.

    The journal gives the usage of the last 30 UTC days, or since --since. Requests are those of kvproxy savings and refused
    ones, without those that warmed the cache, whose tokens and money count. Tokens are those that quotas count: of prompts,
    also reused ones, and of responses, without hits. Requests that the proxy forwards unread have tokens only for clients
    with a budget. Budgets count UTC days and months. A team has the usage of clients while they had the team, too.
    Without clients, stderr says whether the proxy accepts or rejects all requests, in every format.
    """
    from kvproxy.operations.keys import list_keys

    listed = place.open().perform(list_keys, query)
    clients = listed.clients
    if listed.outage is not None:
        print_note(f"the clients and their money are those in the memory of the proxy: {listed.outage}")
    if listed.problem is not None:
        print_note(f"the usage is unknown: {listed.problem}")
    if place.prices_may_differ:
        print_note(PRICES_MAY_DIFFER)
    spent = f"Spent {listed.currency}"
    rows: list[Row] = [
        {
            "Name": client.name,
            Column("Team", is_optional=True): client.team,
            Column("Disabled", is_optional=True): Formatted("yes" if client.disabled else "", client.disabled),
            number_column(spent, "spent", optional=True): money(client.spent),
            number_column("Left today", "left_today", optional=True): money(client.left_today),
            number_column("Left/month", "left_this_month", optional=True): money(client.left_this_month),
            number_column("Reserved", "reserved", optional=True, hides_empty=True): money(client.reserved)
            if client.reserved
            else Formatted("", client.reserved),
            "Requests#": client.requests,
            number_column("Tokens", "tokens", optional=True): client.tokens,
            **_exceptions(client),
            "Last used": None
            if client.last_used is None
            else Formatted(f"{format_age(client.last_used)} ago", local_time(client.last_used)),
            number_column("Budget/day", "budget_per_day", optional=True): _budget(client.budget_per_day),
            number_column("Budget/month", "budget_per_month", optional=True): _budget(client.budget_per_month),
            number_column("Requests/min", "requests_per_minute", optional=True): client.requests_per_minute,
            number_column("Tokens/min", "tokens_per_minute", optional=True): client.tokens_per_minute,
            number_column("In flight", "concurrent_requests", optional=True): client.concurrent_requests,
            Column("Models", is_optional=True): client.models,
            Column("Expires", is_optional=True): None if client.expires is None else local_time(client.expires),
            number_column("Stored", "stored_bytes", optional=True): None
            if client.stored_bytes is None
            else format_size(client.stored_bytes),
            Column("Old key until", is_optional=True, field="previous_key_expires"): None
            if client.previous_key_expires is None
            else local_time(client.previous_key_expires),
        }
        for client in clients
    ]
    empty = listed.closed or f"no clients in {place.folder}: its proxy accepts requests without a key"
    # The sentence distinguishes an open proxy from a closed one, also for a program that reads `[]`.
    return table_output(clients, rows, layout=layout) if rows else Output(clients, lambda: None, note=empty)


@app.subcommand
def history(
    *,
    limit: LimitOrAll = None,
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.keys:OperatorChange")],
    place: KeysPlace,
) -> Output:
    """List the last changes of clients and stored responses.

    The responses are those that operators removed, expired, pinned, rejected, approved, or imported. The newest --limit changes
    are listed.
    """
    from kvproxy.operations.keys import list_changes

    changes = place.open().perform(list_changes, ChangesPage(default_limit(limit, 50)))
    rows: list[Row] = [
        {
            Column("Time", field="changed"): table_time(change.changed),
            text_column("Operator"): change.operator,
            text_column("Change"): change.change,
        }
        for change in changes
    ]
    return table_output(changes, rows, empty="no changes", layout=layout)


@app.subcommand
def rotate(rotation: KeyRotation, place: KeysPlace) -> Output:
    """Print a new API key; the old one stays valid for a day.

    The old key stays valid for a day or --grace, so that applications can change at any time; 0s revokes it at once. The client
    keeps its stored responses, quotas, and journal.

    Example: kvproxy keys rotate search-team --grace 7d
    """
    from kvproxy.operations.keys import rotate_key

    created = place.open().perform(rotate_key, rotation)
    _print_notes(created.notes)
    if rotation.grace:
        print_note(f"the old key is valid until {local_time(time.time() + rotation.grace)}; --grace 0s ends it now")
    return text_output({"name": created.name, "key": created.key, "grace": rotation.grace}, created.key)


@app.subcommand
def disable(client: ClientName, place: KeysPlace) -> Output:
    """Reject the requests of a client, until it is enabled again.

    Its requests get 403, and streams in flight end with an error. Its key, counts, and stored responses stay. Running proxies
    apply this within two seconds. While PostgreSQL fails or the disk is full, --url changes a running proxy, which stores the
    change later.

    Example: kvproxy keys disable search-team
    """
    from kvproxy.operations.keys import disable_client

    _print_notes(place.open().perform(disable_client, client).notes)
    return text_output({"disabled": client.name}, f"disabled {client.name}: kvproxy keys enable {client.name}")


@app.subcommand
def enable(client: ClientName, place: KeysPlace) -> Output:
    """Accept the requests of a disabled client again.

    Running proxies apply this within two seconds.

    Example: kvproxy keys enable search-team
    """
    from kvproxy.operations.keys import enable_client

    _print_notes(place.open().perform(enable_client, client).notes)
    return text_output({"enabled": client.name}, f"enabled {client.name}")


@app.subcommand
def reset(client: ClientName, place: KeysPlace) -> Output:
    """Start the counts of a client's usage and money again.

    The client has its quota of requests and tokens, and its budgets of this day and this month, again. Running proxies
    apply this within two seconds.

    Example: kvproxy keys reset search-team
    """
    from kvproxy.operations.keys import reset_counts

    place.open().perform(reset_counts, client)
    return text_output({"reset": client.name}, f"the counts of {client.name} start again")


@app.subcommand
def rm(client: ClientName, place: KeysPlace) -> Output:
    """Remove a client with its counts, and revoke its key.

    Running proxies apply this within two seconds. Without the last client, the proxy rejects all requests.

    Example: kvproxy keys rm search-team
    """
    from kvproxy.operations.keys import remove_client

    removed = place.open().perform(remove_client, client)
    _print_notes([removed.closed] if removed.closed else [])
    return text_output(fields_of(removed), f"removed {removed.removed} from the clients of {place.owner}")


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print_note(note)


def _budget(amount: float | None) -> Formatted | None:
    return None if amount is None else Formatted(format_amount(amount), amount)
