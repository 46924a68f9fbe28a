"""Label values whose series exist from the start: Prometheus' `rate` and `increase` miss the first events of a new series."""

from collections.abc import Iterator, Mapping
from typing import get_args

from kvproxy.apis.api import ApiName
from kvproxy.settings.limits import LimitSettings

STATUSES: Mapping[str, tuple[int, ...]] = {
    "exact": (200,),
    "semantic": (200,),
    "shared": (200,),
    "prefix": (200,),
    "forward": (200, 400, 401, 404, 429, 500, 502, 503, 504, 529),
    "bypass": (200,),
    "refused": (400, 401, 403, 404, 413, 429, 503, 504),
    "disconnected": (499, 504),
    "error": (200, 500, 502, 503, 504),
}
LIMITS = (
    *LimitSettings.model_fields,
    *("requests_per_minute", "tokens_per_minute", "concurrent_requests", "budget_per_day", "budget_per_month"),
    *("models", "prices", "routes", "disabled", "expires"),
)
"""Names of the settings that refuse or end requests."""
CLIENT_STATUSES = (200, 403, 429)


def request_labels() -> Iterator[tuple[str, str, int]]:
    """Yield the usual endpoints, layers, and statuses of requests."""
    for endpoint in get_args(ApiName):
        for layer, statuses in STATUSES.items():
            for status in statuses:
                yield endpoint, layer, status
