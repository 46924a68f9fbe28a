"""A PostgreSQL server with pgvector that a test may kill."""

import contextlib
import os
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.polling import until


class PostgresServer:
    """A running server without fsync: a killed process loses nothing, since the machine keeps running."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri()

    @property
    def process(self) -> int:
        """Return the id of the process whose children serve the clients."""
        return int(self._server.get_pid())

    def kill(self) -> None:
        """Kill the server, and wait until its other processes have ended: they still serve clients for a moment."""
        server = self.process
        others = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        os.kill(server, signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{other}/exe").exists() for other in others))

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all processes of the server, so that it does not answer until the end of the block."""
        children = Path(f"/proc/{self.process}/task/{self.process}/children").read_text().split()
        processes = [self.process, *map(int, children)]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)

    def restart(self) -> None:
        # The killed process may remain as a zombie, which pgserver takes for a running server.
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            (self._server.pgdata / name).unlink(missing_ok=True)

        def started() -> bool:
            # The processes of the killed server may still use its memory.
            with contextlib.suppress(subprocess.SubprocessError):
                self._server.ensure_postgres_running()
                return True
            return False

        until(started, interval=0.2)


@contextlib.contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    # The path of pytest's folder is too long for a Unix socket.
    with tempfile.TemporaryDirectory(prefix="pg") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pgserver

        server = pgserver.get_server(folder, cleanup_mode="stop")
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute("alter system set fsync = off")
                connection.execute("select pg_reload_conf()")
            yield PostgresServer(server)
        finally:
            server.cleanup()


def empty(url: str) -> None:
    """Drop the store and the journal on a server."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop schema if exists kvproxy, kvproxy_journal cascade")
