"""Lists values of parameters for the completion of a command line, without a running proxy."""

from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeAlias, get_args

from kvproxy.index.store_location import is_url

_NEWEST = 50
_HELP_LENGTH = 60
Described: TypeAlias = tuple[str, str]
"""A value, and what some shells show beside it."""


def layers(data: Path | None) -> Iterable[str]:
    from kvproxy.journal.record import Layer

    return get_args(Layer)


def reasons(data: Path | None) -> Iterable[str]:
    from kvproxy.journal.reasons import reasons as known_reasons

    # Names such as prefix-N% stand for several reasons: complete their constant part.
    return (reason.split("NAME")[0].split("N%")[0] for reason in known_reasons())


def losses(data: Path | None) -> Iterable[str]:
    from kvproxy.journal.sessions.ledger import LOSSES

    return LOSSES


def client_names(data: Path | None) -> Iterable[str]:
    """List the clients of a data folder. Raises SettingsError or StoreUnavailable."""
    from kvproxy.clients.client_keys import all_clients
    from kvproxy.settings import load_settings

    return (client.name for client in all_clients(load_settings(data=data)))


def tenants(data: Path | None) -> Iterable[str]:
    """List the clients of a data folder, and the tenants of recorded requests, as `--tenant` names them."""
    from kvproxy.errors import KvproxyError
    from kvproxy.journal.record import client_name

    recorded = list[Any]()
    with suppress(KvproxyError):
        recorded = _journal_rows(data, "select distinct tenant from totals where tenant <> ''")
    return sorted({*client_names(data), *(client_name(tenant) or tenant for (tenant,) in recorded)})


def teams(data: Path | None) -> Iterable[str]:
    """List the teams of the clients of a data folder. Raises SettingsError or StoreUnavailable."""
    from kvproxy.clients.client_keys import all_clients
    from kvproxy.settings import load_settings

    return sorted({client.team for client in all_clients(load_settings(data=data)) if client.team is not None})


def upstream_urls(data: Path | None) -> Iterable[str]:
    """List the upstreams in the settings of a data folder. Raises SettingsError."""
    from kvproxy.settings import load_settings

    return (upstream.url for upstream in load_settings(data=data).upstreams)


def models(data: Path | None) -> Iterable[str]:
    """List the models of recorded requests. Raises NotFound or KvproxyError, as do the other functions of the journal."""
    return (name for (name,) in _journal_rows(data, "select distinct model from totals where model <> ''"))


def tags(data: Path | None) -> Iterable[str]:
    return (name for (name,) in _journal_rows(data, "select distinct tag from totals where tag <> ''"))


def request_ids(data: Path | None) -> Iterable[Described]:
    """List the newest requests, with their reasons."""
    return _journal_rows(data, f"select request_id, reason from requests order by number desc limit {_NEWEST}")


def session_numbers(data: Path | None) -> Iterable[Described]:
    """List the numbers of the newest sessions, with the names that their clients gave."""
    sql = (
        "select session, coalesce(max(n.name), '') from turns t left join names n on n.number = t.name"
        f" group by session order by max(t.number) desc limit {_NEWEST}"
    )
    return [(str(session), _beginning(name)) for session, name in _journal_rows(data, sql)]


def response_ids(data: Path | None) -> Iterable[Described]:
    """List the newest stored responses, with their prompts. Raises KvproxyError."""
    from kvproxy.index.store import EntryFilter
    from kvproxy.installation.checks.configured_store import open_configured_store, store_exists
    from kvproxy.settings import load_settings

    settings = load_settings(data=data)
    # A completion must not wait for a database server.
    if is_url(settings.store_location) or not store_exists(settings):
        return []
    with open_configured_store(settings) as store:
        entries = store.list_entries(EntryFilter(), limit=_NEWEST)
    return [(entry.id[:12], _beginning(entry.prompt)) for entry in entries]


def _beginning(text: str) -> str:
    shown = " ".join(text[: 2 * _HELP_LENGTH].split())
    return "".join(character for character in shown if character.isprintable())[:_HELP_LENGTH]


def _journal_rows(data: Path | None, sql: str) -> list[Any]:
    from kvproxy.journal.reader import JournalReader
    from kvproxy.settings import load_settings

    settings = load_settings(data=data)
    if is_url(settings.journal_location):
        return []
    with closing(JournalReader(settings.journal_location)) as reader:
        return reader.rows(sql, [])
