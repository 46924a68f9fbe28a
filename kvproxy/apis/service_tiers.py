"""Reads the service tier of a request, such as OpenAI's flex processing, because it decides the price."""

from kvproxy.apis.json import Json, JsonMap, contains_any, field, loads
from kvproxy.apis.reported_usage import usage_of
from kvproxy.apis.sse import Event

BATCH, STANDARD = "batch", "standard"
_OTHER_NAMES = {"message_batch": BATCH}
"""Names of tiers in reports of usage and of costs."""
_STANDARD_NAMES = frozenset(("", "auto", "default", STANDARD, "standard_only", "on_demand"))
_LONGEST_NAME = 32
_MARKS = (b'"service_tier"', b'"speed"')


def served_tier(response: JsonMap) -> str | None:
    """Return the tier that served a request, by its response; None for the standard tier, or if it is not reported.

    OpenAI and OpenRouter report `service_tier` beside the usage, and Anthropic in it, with its fast mode as `speed`.
    """
    return _first_tier(*_reported_names(response))


def requested_tier(body: JsonMap) -> str | None:
    """Return the tier that a request asks for; None for the standard tier, or if the provider chooses it."""
    return _first_tier(body.get("service_tier"), body.get("speed"))


def named_tier(name: str) -> str | None:
    """Return the tier with a name; None for a name of the standard tier."""
    return _first_tier(name)


def logged_tier(body: JsonMap, response: JsonMap) -> str | None:
    """Return the tier of a logged request: that of its response, or the requested one if the log has no tier that served it."""
    is_reported = any(isinstance(name, str) for name in _reported_names(response))
    return served_tier(response) if is_reported else requested_tier(body)


class TierReader:
    """Reads the tier from the first event of a stream that names it, since the stream may break off before its end."""

    def __init__(self) -> None:
        self.tier: str | None = None
        self._is_known = False

    def push(self, event: Event) -> None:
        # Each chunk of OpenAI's names the tier.
        if self._is_known or not contains_any(event.data, _MARKS):
            return
        try:
            part = loads(event.data)
        except ValueError:
            return
        holders = (part, field(part, "message"), field(part, "response"))
        tiers = (served_tier(holder) for holder in holders if isinstance(holder, dict))
        self.tier, self._is_known = next((tier for tier in tiers if tier is not None), None), True


def _reported_names(response: JsonMap) -> tuple[Json, ...]:
    usage = usage_of(response)
    return response.get("service_tier"), field(usage, "service_tier"), field(usage, "speed")


def _first_tier(*values: Json) -> str | None:
    names = (value.lower()[:_LONGEST_NAME] for value in values if isinstance(value, str))
    return next((_OTHER_NAMES.get(name, name) for name in names if name not in _STANDARD_NAMES), None)
