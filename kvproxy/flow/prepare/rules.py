"""Finds and applies the operator's rule for a request."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.request_directives import RequestDirectives, ordered_tags
from kvproxy.errors import SettingsError
from kvproxy.flow.prepare.prompt_edits import apply_edits
from kvproxy.index.policies.policy import Limits
from kvproxy.settings import Settings, load_settings
from kvproxy.settings.access import CLIENT_PREFIX
from kvproxy.settings.rules import RuleSettings


class Rules:
    """The operator's rules, of which the first that matches a request applies."""

    def __init__(self, settings: Settings) -> None:
        self._data = settings.data
        self._held = settings.rules, settings.edits
        self._at_start: Settings | None = None
        self._keys_at_start = dict[Path, str | None]()
        with suppress(SettingsError):
            # Without the flags of the command line, which a reload does not have.
            self._at_start = load_settings(data=self._data)
            self._keys_at_start = _keys_in_files(self._at_start)

    def __len__(self) -> int:
        return len(self._held[0])

    @property
    def has_edits(self) -> bool:
        return bool(self._held[1])

    def apply_edits(self, request: ApiRequest) -> ApiRequest:
        """Apply the prompt edits that the request's rule selects, or all edits if no rule selects any. Call `apply` first."""
        named = request.control.rule.edits
        return apply_edits(request, [edit for edit in self._held[1] if named is None or edit.name in named])

    def reload(self) -> list[str]:
        """Reload rules and edits from kvproxy.toml. Return the names of other changed settings, which require a restart.

        A changed key file counts as a changed setting `upstreams.api_key_file`.

        An invalid file raises SettingsError and changes nothing.
        """
        settings = load_settings(data=self._data)
        self._held = settings.rules, settings.edits
        if self._at_start is None:
            return []
        changed = _changed_settings(self._at_start, settings)
        # Upstreams keep the keys that they read at the start.
        if "upstreams" not in changed and _keys_in_files(settings) != self._keys_at_start:
            changed.append("upstreams.api_key_file")
        return [name for name in changed if name not in ("rules", "edits")]

    def apply(self, request: ApiRequest) -> ApiRequest:
        """Find the first rule that matches the request, and add the rule's limits and tags to the request."""
        rule = next((candidate for candidate in self._held[0] if rule_matches(candidate, request)), None)
        return request if rule is None else replace(request, control=_stricter_control(request.control, rule))


def _keys_in_files(settings: Settings) -> dict[Path, str | None]:
    """Return the keys of upstreams in files, by path; None for a file without a key."""
    keys = dict[Path, str | None]()
    for server in settings.upstreams:
        if server.api_key_file is not None:
            keys[server.api_key_file] = None
            with suppress(SettingsError):
                _, keys[server.api_key_file] = server.authorization_or_key()
    return keys


def _changed_settings(before: BaseModel, after: BaseModel) -> list[str]:
    names = []
    for name in sorted(type(before).model_fields):
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        is_section = isinstance(old, BaseModel) and isinstance(new, BaseModel)
        names += [f"{name}.{inner}" for inner in _changed_settings(old, new)] if is_section else [name]
    return names


def rule_matches(rule: RuleSettings, request: ApiRequest) -> bool:
    client = request.tenant.partition("/")[0]
    return (
        _matches_pattern(rule.path, request.api.path)
        and _matches_pattern(rule.model, request.model)
        and any(
            _matches_pattern(rule.tenant, name) for name in (request.tenant, client, client.removeprefix(CLIENT_PREFIX))
        )
        and all(_matches_pattern(text, request.headers.get(name.lower())) for name, text in rule.headers.items())
        and (rule.tag is None or any(_matches_pattern(rule.tag, tag) for tag in request.control.tags))
    )


def _matches_pattern(pattern: str | None, text: str | None) -> bool:
    return pattern is None or (text is not None and fnmatchcase(text, pattern))


def _stricter_control(control: RequestDirectives, rule: RuleSettings) -> RequestDirectives:
    limits = control.limits
    off = rule.cache is False
    return replace(
        control,
        no_cache=control.no_cache or off,
        no_store=control.no_store or off,
        limits=Limits(
            _stricter_limit(max, limits.min_similarity, rule.min_similarity),
            _stricter_limit(max, limits.min_probability, rule.min_probability),
            _stricter_limit(min, limits.max_error, rule.max_error),
        ),
        # The project of the header has precedence.
        tags=ordered_tags((*control.tags, *rule.tags)),
        rule=rule,
    )


def _stricter_limit(
    choose: Callable[[float, float], float], requested: float | None, configured: float | None
) -> float | None:
    if requested is None or configured is None:
        return configured if requested is None else requested
    return choose(requested, configured)
