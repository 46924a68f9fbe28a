"""Checks who can use a proxy that listens beyond this machine."""

from urllib.parse import urlsplit

from kvproxy.clients.client_keys import requires_client_key, why_closed
from kvproxy.errors import SettingsError, StoreUnavailable
from kvproxy.installation.checks.servers import CheckWarning
from kvproxy.installation.data_folder import running_proxy
from kvproxy.settings import Settings
from kvproxy.settings.access import is_loopback


def check_access(settings: Settings) -> str:
    """Check the access to the address of the settings, or of the proxy that uses their data folder now.

    Raises SettingsError if everybody could use it, and CheckWarning if its dashboard is closed, or if everybody may control its
    upstreams.
    """
    proxy = running_proxy(settings.data)
    if proxy is None:
        check_clients_exist(settings)
    else:
        settings = settings.model_copy(update={"host": urlsplit(proxy.url).hostname or settings.host})
    if warnings := [*filter(None, (closed_routes(settings), open_routes(settings)))]:
        raise CheckWarning(f"{settings.host}: {'; '.join(warnings)}")
    return f"{settings.host}, {'this machine only' if is_loopback(settings.host) else 'with an admin_token'}"


def check_clients_exist(settings: Settings) -> None:
    """Raise a SettingsError if every machine that reaches the proxy could use it without a key."""
    if is_loopback(settings.host) or settings.access.open or requires_client_key(settings):
        return
    raise SettingsError(
        f"on {settings.host} everybody who reaches this proxy could use it: kvproxy keys add NAME makes a client with a key;"
        " --open serves everybody all the same"
    )


def access_warnings(settings: Settings) -> list[str]:
    """Return the cause for which `serve` refuses the address of the settings, and the closed parts of the proxy there."""
    warnings = []
    try:
        if (closed := why_closed(settings)) is not None:
            warnings.append(closed)
        check_clients_exist(settings)
    except SettingsError as error:
        warnings.append(f"kvproxy serve does not start yet: {error.message}")
    except StoreUnavailable:
        # The clients are in PostgreSQL, which doctor reports.
        pass
    warnings += [f"{settings.host}: {found}" for found in (closed_routes(settings), open_routes(settings)) if found]
    return warnings


def open_routes(settings: Settings) -> str | None:
    """Return a warning if everybody who reaches the proxy may control its upstreams."""
    is_open = settings.access.open and settings.access.routes is None and bool(settings.servers)
    if not is_open or is_loopback(settings.host) or _requires_client_key(settings):
        return None
    return (
        "everybody who reaches this proxy also reaches the control routes of its upstreams, such as POST /sleep: set"
        " access.routes = [], or add a client with kvproxy keys add"
    )


def _requires_client_key(settings: Settings) -> bool:
    try:
        return requires_client_key(settings)
    except StoreUnavailable:
        # Reported by another check.
        return False


def closed_routes(settings: Settings) -> str | None:
    """Return a warning if other machines reach the proxy, but not its dashboard."""
    if settings.admin_token is not None or is_loopback(settings.host):
        return None
    routes = "the dashboard answers" if settings.metrics_token else "the dashboard and /metrics answer"
    return f"without admin_token, {routes} only requests from this machine, and 401 to others"
