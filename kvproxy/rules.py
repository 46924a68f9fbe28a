"""The rules of a proxy and its edits: what the operator sets for some requests. They can be changed while the proxy runs."""

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase

from kvproxy.apis.control import Control
from kvproxy.apis.request import ApiRequest
from kvproxy.index.policies.policy import Limits
from kvproxy.ruled import Ruled
from kvproxy.settings import Settings, load_settings
from kvproxy.settings.clients import CLIENT
from kvproxy.settings.edits import EditSettings
from kvproxy.settings.rules import RuleSettings


class Rules:
    """The rules of one proxy, in their order; of those that match a request, the first one holds.

    Args:
        settings: the rules and edits to begin with, and the data folder whose file is read again.
    """

    def __init__(self, settings: Settings) -> None:
        self._data = settings.data
        self._held = settings.rules, settings.edits
        self.generation = 0
        """How often they were read again."""

    def __len__(self) -> int:
        return len(self._held[0])

    def edits(self, request: ApiRequest) -> tuple[EditSettings, ...]:
        """The edits that are made in a request that has its rule."""
        named, edits = request.control.ruled.edits, self._held[1]
        return edits if named is None else tuple(edit for edit in edits if edit.name in named)

    def reload(self) -> None:
        """Read rules and edits again. Requests under way keep theirs.

        Raises:
            SettingsError: the file cannot be used; nothing is changed.
        """
        settings = load_settings(data=self._data)
        self._held = settings.rules, settings.edits
        self.generation += 1

    def apply(self, request: ApiRequest) -> ApiRequest:
        """The request with what its rule sets."""
        rule = next((each for each in self._held[0] if matches(each, request)), None)
        return request if rule is None else replace(request, control=_changed(request.control, rule))


def matches(rule: RuleSettings, request: ApiRequest) -> bool:
    """Whether a rule holds for a request."""
    return (
        _fits(rule.path, request.api.path)
        and _fits(rule.model, request.model)
        and any(_fits(rule.tenant, name) for name in _names(request.tenant))
        and all(_fits(text, request.headers.get(name.lower())) for name, text in rule.headers.items())
        and (rule.tag is None or any(_fits(rule.tag, tag) for tag in request.control.tags))
    )


def _names(tenant: str) -> tuple[str, ...]:
    """The names by which a rule may know a tenant: the tenant, its client, and the client's name."""
    client = tenant.partition("/")[0]
    return tenant, client, client.removeprefix(CLIENT)


def _fits(pattern: str | None, text: str | None) -> bool:
    return pattern is None or (text is not None and fnmatchcase(text, pattern))


def _changed(control: Control, rule: RuleSettings) -> Control:
    """What a request asks for, with what the rule sets; neither can loosen what the other one demands."""
    limits = control.limits
    off = rule.cache is False
    return replace(
        control,
        no_cache=control.no_cache or off,
        no_store=control.no_store or off,
        limits=Limits(
            _stricter(max, limits.similarity, rule.similarity),
            _stricter(max, limits.level, rule.level),
            _stricter(min, limits.max_error, rule.max_error),
        ),
        tags=tuple(sorted({*control.tags, *rule.tags})),
        ruled=Ruled(
            name=rule.name,
            semantic=rule.semantic is not False,
            policy=rule.policy,
            ttl=rule.ttl,
            stale_while_revalidate=rule.stale_while_revalidate,
            stale_if_error=rule.stale_if_error,
            ignored=rule.ignore,
            key_headers=rule.key_headers,
            key_fields=rule.key_fields,
            text=rule.journal_text,
            edits=rule.edits,
            pace=rule.pace,
            sampled=rule.sampled,
        ),
    )


def _stricter(choose: Callable[[float, float], float], one: float | None, two: float | None) -> float | None:
    if one is None or two is None:
        return one if two is None else two
    return choose(one, two)
