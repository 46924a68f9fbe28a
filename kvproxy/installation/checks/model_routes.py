"""Compares the configured models of upstreams with the models that the upstreams list."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from kvproxy.clients.client_keys import all_clients
from kvproxy.errors import KvproxyError
from kvproxy.installation.checks.servers import CheckWarning, check_upstream
from kvproxy.installation.checks.unpriced_models import unpriced_models
from kvproxy.settings import Settings
from kvproxy.settings.access import ClientSettings
from kvproxy.settings.models import upstreams_of
from kvproxy.settings.unknown_models import unknown_models


def check_model_routes(settings: Settings) -> str:
    """Return the upstreams of each model as text.

    Raises CheckWarning if an upstream does not list a model, if a fallback, client, rule, or edit names an unknown one, or if
    a client with a budget may use one without a price.
    Upstreams that do not answer have checks of their own.
    """
    servers, listed = settings.servers, dict[str, tuple[str, ...]]()
    for server in servers:
        try:
            listed[server.url] = check_upstream(server, settings).models
        except KvproxyError:
            continue
    warnings = []
    for server in servers:
        known = listed.get(server.url)
        named = dict.fromkeys([*server.models, *server.aliases.values()])
        missing = [name for name in named if known and not any(fnmatchcase(other, name) for other in known)]
        if missing:
            warnings.append(f"{server.url} does not list {', '.join(missing)}: correct its models and aliases")
    others = {url: set(names) for url, names in listed.items() if names and not _models_of(url, settings)}
    everywhere = [
        name
        for names in others.values()
        for name in names
        if all(name in listed_names for listed_names in others.values())
    ]
    different = {name for names in others.values() for name in names} - {*everywhere}
    if different:
        warnings.append(
            f"{' and '.join(others)} list different models ({', '.join(sorted(different)[:5])}), but each gets requests for"
            " all of them: set models, see docs/routing.md"
        )
    clients = _clients(settings)
    warnings += [*unknown_models(settings, clients, listed), *unpriced_models(settings, clients, listed)]
    if warnings:
        raise CheckWarning("; ".join(warnings))
    names = list(dict.fromkeys(name for server in servers for name in server.models))
    if not names:
        return "all upstreams serve the same models" if len(servers) > 1 else "all models go to the only upstream"
    return "; ".join(f"{name}: {' or '.join(upstreams_of(name, servers))}" for name in names)


def _clients(settings: Settings) -> Sequence[ClientSettings]:
    try:
        return all_clients(settings)
    except KvproxyError:
        # The check of clients reports it.
        return settings.clients


def _models_of(url: str, settings: Settings) -> tuple[str, ...]:
    return next(server.models for server in settings.servers if server.url == url)
