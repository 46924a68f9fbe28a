"""All formats of request logs, the most specific signature first."""

from typing import NoReturn

from kvproxy.analyse.log_formats import (
    bedrock,
    conversations,
    engines,
    evaluations,
    gateways,
    observability,
    requests,
    spans,
    usage_reports,
)
from kvproxy.analyse.log_formats.log_format import LogFormat
from kvproxy.doors import LOG_FORMATS
from kvproxy.errors import SettingsError
from kvproxy.index.errors import PluginError

FORMATS: tuple[LogFormat, ...] = (
    *evaluations.FORMATS,
    *gateways.FORMATS,
    *bedrock.FORMATS,
    *spans.FORMATS,
    *observability.FORMATS,
    *engines.FORMATS,
    *conversations.FORMATS,
    *usage_reports.FORMATS,
    *requests.FORMATS,
    *usage_reports.TABLES,
)
"""The formats of kvproxy itself."""
PROMPTS = "prompts"
"""Value of `--format` for a text file with one prompt per line."""


def log_formats() -> tuple[LogFormat, ...]:
    """Return the formats of installed plugins, then the built-in formats. Raises SettingsError for an invalid plugin.

    If a row matches several formats, the first one reads it, so that a plugin can replace a format.
    """
    return (*(log_format for _, log_format in LOG_FORMATS.load_plugins(_refuse)), *FORMATS)


def format_names() -> list[str]:
    return [*dict.fromkeys(log_format.name for log_format in log_formats() if log_format.has_requests), PROMPTS]


def _refuse(error: PluginError) -> NoReturn:
    raise SettingsError(str(error)) from error
