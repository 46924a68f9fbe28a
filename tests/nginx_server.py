"""An nginx with a site of `deploy/`, or of a test."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.polling import until
from tests.programs import find, reason, required

needs_nginx = pytest.mark.skipif(find("nginx") is None, reason=reason("nginx"))
_WORKER_EXITED = "exited with code 0"


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
