"""An nginx with a site of `deploy/`, or of a test."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.polling import until
from tests.programs import find, reason, required

needs_nginx = pytest.mark.skipif(find("nginx") is None, reason=reason("nginx"))
_FLEET_SITE = Path(__file__).resolve().parents[1] / "deploy/compose/fleet-nginx.conf"
_WORKER_EXITED = "exited with code 0"


def fleet_site(urls: Sequence[str], port: int, left_out: int | None = None) -> str:
    """Return the site of `deploy/compose` for proxies at URLs, of which one may be marked as down."""
    text = _FLEET_SITE.read_text()
    server = "    server kvproxy:8484 max_fails=1 fail_timeout=5s;\n"
    assert server in text
    assert "listen 80;" in text
    addresses = [url.removeprefix("http://") + " down" * (place == left_out) for place, url in enumerate(urls)]
    text = text.replace(server, "".join(server.replace("kvproxy:8484", address) for address in addresses))
    return text.replace("listen 80;", f"listen 127.0.0.1:{port};")


@contextlib.contextmanager
def run_nginx(folder: Path, site: str) -> Iterator[Callable[[str], None]]:
    """Run nginx with one site until the end of the block; yield a function that replaces the site.

    All other files of nginx are in the folder. The first requests may be refused.
    """
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    user = "user root;\n" if os.geteuid() == 0 else ""
    head = f"daemon off;\n{user}pid {folder}/pid;\nerror_log {folder}/error.log notice;\nevents {{ worker_connections 1024; }}\n"
    configuration, log = folder / "nginx.conf", folder / "error.log"

    def write(site: str) -> None:
        configuration.write_text(f"{head}http {{\naccess_log off;\n{temporary}{site}}}\n")

    def replace(site: str) -> None:
        """Return when no worker uses the previous site: it has ended its requests."""
        write(site)
        exits = log.read_text().count(_WORKER_EXITED)
        process.send_signal(signal.SIGHUP)
        until(lambda: log.read_text().count(_WORKER_EXITED) > exits)

    write(site)
    process = subprocess.Popen([required("nginx"), "-p", str(folder), "-e", str(log), "-c", str(configuration)])
    try:
        yield replace
    finally:
        process.terminate()
        process.wait()
