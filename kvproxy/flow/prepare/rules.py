"""Finds and applies the operator's rule for a request."""

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.request_directives import RequestDirectives, ordered_tags
from kvproxy.flow.prepare.prompt_edits import apply_edits
from kvproxy.index.policies.policy import Limits
from kvproxy.settings import Settings
from kvproxy.settings.access import CLIENT_PREFIX
from kvproxy.settings.rules import RuleSettings


class Rules:
    """The operator's rules, of which the first that matches a request applies."""

    def __init__(self, settings: Settings) -> None:
        self.replace(settings)

    def replace(self, settings: Settings) -> None:
        """Use the rules and edits of changed settings for new requests."""
        self._held = settings.rules, settings.edits

    def __len__(self) -> int:
        return len(self._held[0])

    @property
    def has_edits(self) -> bool:
        return bool(self._held[1])

    def apply_edits(self, request: ApiRequest) -> ApiRequest:
        """Apply the prompt edits that the request's rule selects, or all edits if no rule selects any. Call `apply` first."""
        named = request.control.rule.edits
        return apply_edits(request, [edit for edit in self._held[1] if named is None or edit.name in named])

    def apply(self, request: ApiRequest) -> ApiRequest:
        """Find the first rule that matches the request, and add the rule's limits and tags to the request."""
        rule = next((candidate for candidate in self._held[0] if rule_matches(candidate, request)), None)
        return request if rule is None else replace(request, control=_stricter_control(request.control, rule))


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
