"""Models without a price, which the proxy refuses to clients with budgets."""

from collections.abc import Mapping, Sequence

from kvproxy.settings import Settings
from kvproxy.settings.access import ClientSettings
from kvproxy.settings.unknown_models import known_models
from kvproxy.units import first_names

_MAX_NAMES = 5


def unpriced_models(
    settings: Settings, clients: Sequence[ClientSettings], listed: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """Return a sentence about models that clients with budgets may use, and that have no price; empty without such models.

    `listed` has the models that an upstream lists, by its URL. Models behind https URLs are ignored, because providers list
    many unused ones.
    """
    limited = _with_budget(clients)
    if not limited or not settings.servers:
        return []
    # The price list takes long to import.
    from kvproxy.providers.prices import ModelPrices

    own = {url: names for url, names in (listed or {}).items() if not url.startswith("https:")}
    known, prices = known_models(settings.servers, own), ModelPrices(settings.journal)
    targets = {name: name for name in known.names} | dict(known.aliases)
    models = {model for name, model in targets.items() if any(client.may_use(name) for client in limited)}
    unpriced = sorted(model for model in models if model not in prices)
    if not unpriced:
        return []
    blocked = first_names([client.name for client in limited], _MAX_NAMES)
    return [
        f"no price is known for {first_names(unpriced, _MAX_NAMES)}, so clients with a budget get 403 for it"
        f' ({blocked}): set [journal.prices."{unpriced[0]}"], with input = 0 and'
        " output = 0 for a free model"
    ]


def _with_budget(clients: Sequence[ClientSettings]) -> list[ClientSettings]:
    """Return the clients whose own budget, or whose team's, counts their requests."""
    named = {client.name: client for client in clients}
    teams = {client.team for client in clients if client.team in named and named[client.team].has_budget}
    return [client for client in clients if client.has_budget or client.team in teams]
