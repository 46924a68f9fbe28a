"""All formats of request logs, the most specific signature first."""

from importlib.metadata import EntryPoint, entry_points

from kvproxy.analyse.log_formats import conversations, engines, evaluations, gateways, observability, requests
from kvproxy.analyse.log_formats.log_format import LogFormat
from kvproxy.errors import SettingsError

FORMATS: tuple[LogFormat, ...] = (
    *evaluations.FORMATS,
    *gateways.FORMATS,
    *observability.FORMATS,
    *engines.FORMATS,
    *conversations.FORMATS,
    *requests.FORMATS,
)
"""The formats of kvproxy itself."""
PROMPTS = "prompts"
"""Value of `--format` for a text file with one prompt per line."""
GROUP = "kvproxy.log_formats"
"""Entry point group of plugins; each entry point is a `LogFormat`."""


def log_formats() -> tuple[LogFormat, ...]:
    """Return the formats of installed plugins, then the built-in formats. Raises SettingsError for an invalid plugin.

    If a row matches several formats, the first one reads it, so that a plugin can replace a format.
    """
    return (*map(_load, sorted(entry_points(group=GROUP), key=lambda each: each.name)), *FORMATS)


def format_names() -> list[str]:
    return [*dict.fromkeys(each.name for each in log_formats() if each.has_requests), PROMPTS]


def _load(entry_point: EntryPoint) -> LogFormat:
    name = entry_point.value
    try:
        found = entry_point.load()
    except Exception as error:
        raise SettingsError(f"the plugin {name} cannot be loaded ({error!r}): update or uninstall it") from None
    if not isinstance(found, LogFormat):
        raise SettingsError(f"the plugin {name} is no LogFormat: update or uninstall it")
    return found
