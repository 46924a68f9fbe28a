"""An nginx with a site of `deploy/`, or of a test."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

# Debian's package installs nginx where only root's PATH looks.
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx")


@contextlib.contextmanager
def run_nginx(folder: Path, site: str) -> Iterator[None]:
    """Run nginx with one site until the end of the block. All its other files are in the folder.

    The first requests may be refused.
    """
    assert NGINX is not None
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    user = "user root;\n" if os.geteuid() == 0 else ""
    head = f"daemon off;\n{user}pid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
    configuration = folder / "nginx.conf"
    configuration.write_text(f"{head}http {{\naccess_log off;\n{temporary}{site}}}\n")
    command = [NGINX, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(configuration)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
