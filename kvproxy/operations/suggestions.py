"""Lists values of parameters for the completion of a command line, without a running proxy."""

from collections.abc import Iterable
from pathlib import Path
from typing import get_args


def layers(data: Path | None) -> Iterable[str]:
    from kvproxy.journal.record import Layer

    return get_args(Layer)


def reasons(data: Path | None) -> Iterable[str]:
    from kvproxy.journal.reasons import reasons as known_reasons

    # Names such as prefix-N% stand for several reasons: complete their constant part.
    return (reason.split("NAME")[0].split("N%")[0] for reason in known_reasons())


def client_names(data: Path | None) -> Iterable[str]:
    """List the clients of a data folder. Raises SettingsError or StoreUnavailable."""
    from kvproxy.clients.client_keys import all_clients
    from kvproxy.settings import load_settings

    return (client.name for client in all_clients(load_settings(data=data)))


def upstream_urls(data: Path | None) -> Iterable[str]:
    """List the upstreams in the settings of a data folder. Raises SettingsError."""
    from kvproxy.settings import load_settings

    return (upstream.url for upstream in load_settings(data=data).upstreams)
