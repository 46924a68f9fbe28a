"""Options of several commands. The decorator `command` adds an option for each field of an option group."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer import Option

from kvproxy.commands.formatting import local_time
from kvproxy.commands.output import print_note
from kvproxy.commands.row_fields import RowFields
from kvproxy.errors import KvproxyError
from kvproxy.index.errors import CacheStoreError
from kvproxy.journal.groups import COLUMN, SpendingGroup, log_groups, spending_groups
from kvproxy.operations.parameters import Suggestions
from kvproxy.units import parse_bytes, parse_seconds, parse_since, parse_time, require_unit

if TYPE_CHECKING:
    from kvproxy.operations.client import ProxyClient
    from kvproxy.operations.journal import DirectJournal, JournalClient
    from kvproxy.operations.open_cache import CacheClient
    from kvproxy.settings import Settings

DEFAULT_URL = "http://127.0.0.1:8484"
PRICES_MAY_DIFFER = (
    "at the list prices, because there are no settings here: --url PROXY shows the prices in the proxy's settings"
)


def parser_of(parse: Callable[[Any], Any], *, needs_unit: bool = False) -> Callable[[Any], Any]:
    """Return a parser for Typer, which reports a ValueError of `parse` as an error of the option.

    `needs_unit`: refuse a duration without a unit.
    """

    def parser(value: Any) -> Any:
        try:
            if needs_unit and isinstance(value, str):
                require_unit(value)
            return parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


def completion_of(suggestions: Suggestions | None) -> Callable[[typer.Context], list[Any]] | None:
    """Return the completion of a value for Typer; None without suggestions. Errors suggest nothing."""
    if suggestions is None:
        return None

    def complete(context: typer.Context) -> list[Any]:
        try:
            values: list[Any] = list(suggestions(context.params.get("data")))
        except (KvproxyError, CacheStoreError):
            return []
        return sorted(values)

    return complete


def completion_of_fields(row_fields: RowFields) -> Callable[[typer.Context, str], list[str]]:
    """Return the completion of names of fields, separated by commas, for Typer."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{name}" for name in row_fields.names(context.params) if name not in given]

    return complete


def _option_parsed_by(parse: Callable[[Any], Any], metavar: str, *, needs_unit: bool = False) -> Callable[..., Any]:
    return partial(Option, parser=parser_of(parse, needs_unit=needs_unit), metavar=metavar)


duration_option = _option_parsed_by(parse_seconds, "DURATION")
"""An option such as `90s` or `7d`; its value is in seconds."""
since_option = _option_parsed_by(parse_since, "TIME", needs_unit=True)
"""An option such as `7d` or `2026-11-28`; see `units.parse_since`."""
time_option = _option_parsed_by(parse_time, "TIME", needs_unit=True)
"""An option such as `2026-11-28`; its value is in seconds since the epoch."""
size_option = _option_parsed_by(parse_bytes, "SIZE")
"""An option such as `2GiB`; its value is in bytes."""


def groups_option(help: str, *, of_journal: bool = False) -> Any:
    """Return an option with fields such as `day,model`; see `journal/groups.py`. The journal has no items of a bill."""
    names = (name for name in get_args(SpendingGroup) if not of_journal or name != "line_item")
    return Option(
        help=f"{help}: {', '.join(names)}{'' if of_journal else f', or {COLUMN}NAME for a column of a table'}.",
        parser=parser_of(spending_groups if of_journal else log_groups),
        metavar="FIELDS",
    )


def _url_or_configured(context: typer.Context, value: str) -> str:
    source = context.get_parameter_source("url")
    if context.resilient_parsing or source is None or source.name != "DEFAULT":
        return value
    from kvproxy.operations.client import configured_url

    return configured_url(context.params.get("data"))


def _checked_plot(file: Path | None) -> Path | None:
    if file is None:
        return None
    from kvproxy.commands.files import checked_plot

    return checked_plot(file)


def _checked_database_url(store: str | None) -> str | None:
    from kvproxy.index.store_location import is_url

    if store is not None and not is_url(store):
        raise typer.BadParameter("give postgresql://HOST/DATABASE; for a proxy with files, give --data")
    return store


def _token_or_configured(context: typer.Context, value: str | None) -> str | None:
    if context.resilient_parsing or value is not None or "url" not in context.params:
        return value
    from kvproxy.operations.client import configured_token

    return configured_token(context.params["url"], context.params.get("data"))


Url = Annotated[
    str,
    Option(
        "--url",
        envvar="KVPROXY_URL",
        help="URL of the running proxy, by default of the one that uses the data folder, or else from the settings.",
        callback=_url_or_configured,
    ),
]
WRITES = "writes"
"""Metadata of a parameter that names a file to write. The command gets the option `--force`."""
Force = Annotated[bool, Option("--force", help="Replace an existing file.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Data = Annotated[Path | None, Option("--data", help="Data folder with kvproxy.toml and all state.")]
Store = Annotated[str | None, Option("--store", help="File of stored responses, or postgresql://HOST/DATABASE.")]
SharedStore = Annotated[
    str | None,
    Option(
        "--store",
        help="Store of several proxies, postgresql://HOST/DATABASE, by default that of the settings.",
        callback=_checked_database_url,
    ),
]
Token = Annotated[
    str | None,
    Option(
        "--token",
        envvar="KVPROXY_ADMIN_TOKEN",
        help="Admin token of the proxy, by default from the settings if they have its URL.",
        callback=_token_or_configured,
    ),
]
ApiKey = Annotated[str | None, Option("--api-key", envvar="OPENAI_API_KEY", help="API key that selects the tenant.")]
Plot = Annotated[
    Path | None,
    Option("--plot", help="Plot the result into this .png or .svg file, besides the terminal.", callback=_checked_plot),
    WRITES,
]
MAX_ROWS = 2**31 - 1
Limit = Annotated[int, Option("--limit", "-n", help="Maximum number of rows.", min=1, max=MAX_ROWS)]
LimitOrAll = Annotated[
    int | None,
    Option(
        "--limit",
        "-n",
        help="Maximum number of rows; 0 lists all, which is the default in a pipe.",
        min=0,
        max=MAX_ROWS,
        show_default=False,
    ),
]


def load_settings(**values: Any) -> "Settings":
    from kvproxy import settings

    return settings.load_settings(**values)


def settings_section(**values: Any) -> dict[str, Any] | None:
    """Return the values that are not None, as a section of settings; None if all values are None."""
    return {name: value for name, value in values.items() if value is not None} or None


@dataclass(frozen=True, slots=True)
class TierOptions:
    tier_host: Annotated[int | None, size_option(help='Host memory for the prefix cache, such as "4GiB".')] = None
    tier_disk: Annotated[Path | None, Option(help="Folder for the prefix cache, which survives restarts.")] = None
    tier_disk_size: Annotated[int | None, size_option(help='Limit of the --tier-disk folder, such as "20GiB".')] = None
    tier_redis: Annotated[str | None, Option(help="URL of a Redis or Valkey server for the prefix cache.")] = None

    def settings(self, **more: Any) -> dict[str, Any] | None:
        return settings_section(**{name.removeprefix("tier_"): value for name, value in asdict(self).items()}, **more)


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    url: Url = DEFAULT_URL
    token: Token = None
    data: Data = None

    def client(self, timeout: float = 600.0) -> "ProxyClient":
        """Return a client of the proxy. Raises ProxyUnreachable if no user named its URL, and it has another data folder."""
        from kvproxy.operations.client import client_of_proxy

        return client_of_proxy(self.url, self.token, timeout)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    url: Url = DEFAULT_URL
    token: Token = None
    store: Store = None
    data: Data = None

    def open(self, *, create: bool = False) -> "AbstractContextManager[CacheClient]":
        from kvproxy.operations.open_cache import open_cache

        return open_cache(self.url, self.token, self.store, self.data, create=create)


@dataclass(frozen=True, slots=True)
class JournalOptions(ProxyOptions):
    store: SharedStore = None

    def open(self) -> "JournalClient":
        from kvproxy.operations.journal import open_journal

        return open_journal(self.url, self.token, self.data, local_time, store=self.store)

    def open_for_money(self) -> "JournalClient":
        """Open the journal, and print a note if the proxies may have other prices than these settings."""
        from kvproxy.operations.journal import DirectJournal

        journal = self.open()
        if isinstance(journal, DirectJournal) and journal.prices_may_differ:
            print_note(PRICES_MAY_DIFFER)
        return journal

    def open_direct(self, purpose: str) -> "DirectJournal":
        from kvproxy.operations.journal import open_direct_journal

        return open_direct_journal(self.url, self.token, self.data, purpose, store=self.store)
