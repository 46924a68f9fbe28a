"""Starts the server: locks the data folder, opens the socket, creates the app."""

import contextlib
import gc
import logging
import os
import socket
from collections.abc import Callable
from functools import partial

from kvproxy.backends.overload_log import OverloadLog
from kvproxy.errors import OTHER_FOLDER, KvproxyError, SettingsError, file_error
from kvproxy.http.app import create_app
from kvproxy.http.client_connection import refuse_connection
from kvproxy.http.exchange_middleware import ExchangeMiddleware
from kvproxy.http.proxy_server import ProxyServer
from kvproxy.http.services import Services, build_services
from kvproxy.index.private_files import make_private_folder
from kvproxy.installation.checks.access import check_clients_exist, closed_routes
from kvproxy.installation.data_folder import locked_folder
from kvproxy.installation.descriptor_limit import raise_descriptor_limit
from kvproxy.installation.hugging_face_hub import prefer_cached_models
from kvproxy.settings import Settings
from kvproxy.settings.tree import unread_settings
from kvproxy.telemetry.process_log import log_to_stderr
from kvproxy.units import plural

_GC_THRESHOLD = 200_000
"""Allocations between garbage collections, which stop all requests for up to 0.1 s; Python's default is 700."""
_log = logging.getLogger("kvproxy")


def serve(settings: Settings, on_ready: Callable[[Services, str], None] = lambda services, url: None) -> None:
    """Run the proxy until it is interrupted. A thread calls `on_ready` with the services and the URL when the port is open.

    Raises SettingsError, or ModelUnsupported.
    """
    # Prompts are private.
    os.umask(0o077)
    _make_data_folder_private(settings)
    log_to_stderr(settings.log)
    raise_descriptor_limit(settings)
    check_clients_exist(settings)
    # Before slow imports, so that a port in use is reported immediately.
    listeners = [bind_port(settings.host, settings.port)]
    if settings.shared_port is not None:
        listeners.append(bind_port(settings.host, settings.shared_port, is_shared=True))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{listeners[0].getsockname()[1]}"
    with contextlib.ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        stack.enter_context(locked_folder(settings.data, url, settings.journal_file))
        prefer_cached_models(settings)
        for warning in filter(None, (closed_routes(settings), unread_settings(settings.data))):
            _log.warning(warning)
        services = build_services(settings)
        # Exclude loaded objects from garbage collection, which would stop all requests for 0.1 s.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        make_server(services, partial(on_ready, services, url)).run(sockets=listeners)


def make_server(services: Services, on_ready: Callable[[], None] = lambda: None) -> ProxyServer:
    limits, overloads = services.settings.limits, OverloadLog()

    def on_limit(limit: str) -> None:
        services.metrics.count_reached_limit(limit)
        if limit == "connections":
            overloads.log(limit, f"{limits.connections} connections are open")

    # Requests on connections beyond the limit are recorded, too.
    labelled = ExchangeMiddleware(refuse_connection, services.path.finish, services.tenants)
    reload = partial(_reload, services)
    return ProxyServer(create_app(services), limits, services.deadlines, on_limit, labelled, reload, on_ready)


async def _reload(services: Services) -> None:
    try:
        done = await services.reload()
    except KvproxyError as error:
        _log.error("the settings were not reloaded: %s", error.message)
    else:
        _log.info("active: %s, %s", plural(done.rules, "rule"), plural(len(done.upstreams), "upstream"))
        for note in done.notes:
            _log.warning(note)
        if done.restart:
            _log.warning("restart the proxy for the changed settings: %s", ", ".join(done.restart))


def _make_data_folder_private(settings: Settings) -> None:
    try:
        make_private_folder(settings.data)
    except OSError as error:
        raise file_error("use the data folder", settings.data, error, OTHER_FOLDER) from None


def bind_port(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Reserve a port. The server listens when it is ready: until then, clients and load balancers try another proxy.

    The kernel distributes the connections to a shared port over the processes of one user that listen on it.
    """
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if opened.family == socket.AF_INET6 and socket.has_dualstack_ipv6():
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        opened.bind((host, port))
        return opened
    except OSError as error:
        opened.close()
        other = "choose another shared_port" if is_shared else "choose another with --port"
        raise SettingsError(f"cannot listen on {host}:{port} ({error.strerror or error}): {other}") from None
