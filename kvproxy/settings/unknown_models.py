"""Names and patterns of models in the settings that match no model of an upstream, and so have no effect."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import TYPE_CHECKING

from kvproxy.settings.models import is_model_pattern, upstreams_of

if TYPE_CHECKING:
    from kvproxy.settings.access import ClientSettings
    from kvproxy.settings.tree import Settings
    from kvproxy.settings.upstreams import UpstreamServer


@dataclass(frozen=True, slots=True)
class KnownModels:
    """The models of all upstreams.

    Attributes:
        names: configured models, and those that upstreams list.
        aliases: other names that clients may use, with their models.
        patterns: patterns of upstreams whose models are unknown.
    """

    names: frozenset[str]
    aliases: Mapping[str, str]
    patterns: frozenset[str]

    def may_match(self, pattern: str, *, resolved: bool = False) -> bool:
        """Return whether a pattern may match a model, or an alias unless the names are `resolved`."""
        names = self.names if resolved else self.names | self.aliases.keys()
        return any(fnmatchcase(name, pattern) for name in names) or any(
            _may_overlap(pattern, other) for other in self.patterns
        )

    def suggestion(self, pattern: str) -> str:
        if pattern in self.aliases:
            return f"it is an alias, so name its model {self.aliases[pattern]}"
        near = difflib.get_close_matches(pattern, sorted(self.names | self.aliases.keys()), 1)
        return f"did you mean {near[0]}?" if near else "see kvproxy upstreams"


def known_models(servers: "Sequence[UpstreamServer]", listed: Mapping[str, Sequence[str]]) -> KnownModels:
    """Return the models of upstreams. `listed` has the models that an upstream lists, by its URL, if they are known."""
    names, patterns = set[str](), set[str]()
    for server in servers:
        names |= {name for name in server.models if not is_model_pattern(name)} | {*server.aliases.values()}
        if own := listed.get(server.url):
            names |= {name for name in own if server.url in upstreams_of(name, servers)}
        else:
            patterns |= {name for name in server.models or ("*",) if is_model_pattern(name)}
    aliases = {alias: model for server in servers for alias, model in server.aliases.items()}
    return KnownModels(frozenset(names), aliases, frozenset(patterns))


def unknown_models(
    settings: "Settings", clients: "Sequence[ClientSettings]", listed: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """Return a sentence for each fallback, client, rule, and edit whose models do not exist. The embedded engine has none."""
    if not settings.servers:
        return []
    known = known_models(settings.servers, listed or {})
    return [f"{effect}: {known.suggestion(pattern)}" for effect, pattern in _effects(settings, clients, known)]


def unknown_models_of_client(settings: "Settings", client: "ClientSettings") -> list[str]:
    """Return a sentence for each model of a client that no upstream of the settings serves."""
    known = known_models(settings.servers, {})
    effects = _effects_of_client(client, known) if settings.servers else ()
    return [f"{effect}: {known.suggestion(pattern)}" for effect, pattern in effects]


def _effects_of_client(client: "ClientSettings", known: KnownModels) -> Iterator[tuple[str, str]]:
    for name in client.models:
        if not known.may_match(name):
            yield f"the client {client.name} may use {name}, which matches no model of an upstream", name


def _effects(
    settings: "Settings", clients: "Sequence[ClientSettings]", known: KnownModels
) -> Iterator[tuple[str, str]]:
    for name in settings.routing.fallbacks:
        if not known.may_match(name):
            yield f"routing.fallbacks has {name}, which matches no model of an upstream", name
    for client in clients:
        yield from _effects_of_client(client, known)
    for kind, parts in (("rule", settings.rules), ("edit", settings.edits)):
        for part in parts:
            if part.model is not None and not known.may_match(part.model, resolved=True):
                yield f"the {kind} {part.name} never applies: {part.model} matches no model of an upstream", part.model


def _may_overlap(pattern: str, other: str) -> bool:
    if not is_model_pattern(pattern):
        return fnmatchcase(pattern, other)
    one, two = _literal_start(pattern), _literal_start(other)
    return one.startswith(two) or two.startswith(one)


def _literal_start(pattern: str) -> str:
    return "".join(takewhile(lambda character: not is_model_pattern(character), pattern))
