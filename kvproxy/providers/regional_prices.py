"""Prices of inference in one region, as multiples of the standard price."""

import re

# Of Claude Opus 4.6, Sonnet 4.6, and later models; earlier ones refuse the field. Source: platform.claude.com, November 2026.
_FACTORS = {"us": 1.1}
_FIRST_VERSION = 4, 6
_VERSION = re.compile(r"claude-[a-z]+-(\d{1,2})(?:[.-](\d{1,2}))?(?!\d)")


def region_factor(region: str | None) -> float | None:
    """Return the multiple of the price for a region of Anthropic, None for any; None if it is unknown."""
    return 1.0 if region is None else _FACTORS.get(region)


def has_regions(model: str) -> bool:
    """Whether the price of the model depends on the region of its inference."""
    version = _VERSION.search(model)
    return version is not None and (int(version[1]), int(version[2] or 0)) >= _FIRST_VERSION
