"""Models of upstreams: which upstream serves a model, and contradictions among the settings."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from kvproxy.settings.errors import SettingConflict, SettingPath
from kvproxy.settings.upstreams import UpstreamServer

OTHER_MODELS = "*"
"""The alias of all names that no upstream serves."""
_PATTERN_CHARACTERS = frozenset("*?[")


def is_model_pattern(name: str) -> bool:
    return not _PATTERN_CHARACTERS.isdisjoint(name)


def upstreams_of(model: str, servers: Sequence[UpstreamServer]) -> tuple[str, ...]:
    """Return the URLs of the upstreams that serve a model: those that name it, or else a pattern, or else no model."""
    named = tuple(server.url for server in servers if model in server.models)
    if named or not model:
        return named
    matching = tuple(server.url for server in servers if any(fnmatchcase(model, pattern) for pattern in server.models))
    return matching or tuple(server.url for server in servers if not server.models)


def model_conflicts(
    servers: Sequence[UpstreamServer], fallbacks: Mapping[str, Sequence[str]]
) -> Iterator[SettingConflict]:
    names = {name for server in servers for name in server.models}
    targets: dict[str, str] = {}
    for index, server in enumerate(servers):
        for alias, model in server.aliases.items():
            path: SettingPath = ("upstreams", index, "aliases")
            if targets.setdefault(alias, model) != model:
                yield SettingConflict(f"the alias {alias} names {targets[alias]} and {model}: remove one of them", path)
            if alias in names:
                yield SettingConflict(f"{alias} is a model, too: give the alias another name", path)
            if server.models and not any(fnmatchcase(model, pattern) for pattern in server.models):
                yield SettingConflict(f"the alias {alias} names {model}: add it to the models of {server.url}", path)
    for alias in sorted(targets.keys() & set(targets.values())):
        yield SettingConflict(f"{alias} is an alias and the model of an alias: name the model itself", ("upstreams",))
    for model, others in fallbacks.items():
        for name in others:
            if not upstreams_of(targets.get(name, name), servers):
                yield SettingConflict(
                    f"no upstream serves {name}, a fallback of {model}: add it to the models of an upstream",
                    ("routing", "fallbacks", model),
                )
