"""Prices of inference in one region, as multiples of the standard price."""

import re

from kvproxy.apis.json import Json

_ANYWHERE = (None, "", "global", "not_available")
# Of Claude Opus 4.6, Sonnet 4.6, and later models; earlier ones refuse the field. Source: platform.claude.com, November 2026.
_FACTORS = {"us": 1.1}
_FIRST_VERSION = 4, 6
_VERSION = re.compile(r"claude-[a-z]+-(\d{1,2})(?:[.-](\d{1,2}))?(?!\d)")


def region_factor(inference_geo: Json) -> float | None:
    """Return the multiple of the price for the region in Anthropic's usage; None for an unknown region."""
    return 1.0 if inference_geo in _ANYWHERE else _FACTORS.get(str(inference_geo).lower())


def has_regions(model: str) -> bool:
    """Whether the price of the model depends on the region of its inference."""
    version = _VERSION.search(model)
    return version is not None and (int(version[1]), int(version[2] or 0)) >= _FIRST_VERSION
