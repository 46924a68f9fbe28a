"""Checks the plugins: parts that other distributions add by entry points."""

from kvproxy.doors import DOORS
from kvproxy.errors import SettingsError
from kvproxy.index.errors import PluginError


def check_plugins() -> str:
    """Load all plugins, and return their names. Raises a SettingsError with a line for each broken plugin."""
    names: list[str] = []
    problems: list[PluginError] = []
    for door in DOORS:
        owners = {point.name: point.dist.name for point in door.plugins() if point.dist is not None}
        names += [f"{door.part} {name} ({owners[name]})" for name, _ in door.load_plugins(problems.append)]
    if problems:
        raise SettingsError("\n".join(map(str, problems)))
    return ", ".join(names) or "none"
