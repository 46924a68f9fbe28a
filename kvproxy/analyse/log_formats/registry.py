"""All formats of request logs, the most specific signature first."""

from kvproxy.analyse.log_formats import conversations, engines, evaluations, gateways, observability, requests
from kvproxy.analyse.log_formats.log_format import LogFormat

FORMATS: tuple[LogFormat, ...] = (
    *evaluations.FORMATS,
    *gateways.FORMATS,
    *observability.FORMATS,
    *engines.FORMATS,
    *conversations.FORMATS,
    *requests.FORMATS,
)
PROMPTS = "prompts"
"""Value of `--format` for a text file with one prompt per line."""


def format_names() -> list[str]:
    return [*(each.name for each in FORMATS if each.has_requests), PROMPTS]
