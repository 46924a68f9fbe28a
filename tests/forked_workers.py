"""Workers of pytest-xdist that share one import of all tests.

By itself, each worker compiles and imports the tests, PyTorch, and the SDKs, which takes half a minute of CPU time on a fresh
checkout. Here one process collects the tests, and forks a worker for each command that execnet starts.
"""

import atexit
import contextlib
import gc
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

_BOOTSTRAP = "import sys;exec(eval(sys.stdin.readline()))"
"""What execnet runs in a new process."""


@contextlib.contextmanager
def run_fork_server(arguments: Sequence[str]) -> Iterator[str]:
    """Collect the tests of pytest's arguments in a process; yield the command that starts a worker, for execnet."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder) / "workers")
        listener.bind(address)
        listener.listen(128)
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, "serve", str(listener.fileno()), *arguments],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
        listener.close()
        try:
            yield shlex.join([sys.executable, "-m", __name__, "connect", address])
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()


def _serve(listener: socket.socket, arguments: Sequence[str]) -> None:
    """Fork a worker for each connection, until standard input ends."""
    import pytest

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        # Errors of the collection are reported by the workers.
        pytest.main([*arguments, "-n0", "--collect-only", "--quiet", "-p", "no:cacheprovider"])
    # Pages of objects that are not visited stay shared.
    gc.freeze()
    workers = []
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        worker = os.fork()
        if worker == 0:
            listener.close()
            # The connection stays open until the worker exits.
            _run_worker(streams)
        workers.append(worker)
        for stream in streams:
            os.close(stream)
        connection.close()
    for worker in workers:
        # pytest-xdist has given up on one that still runs.
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def _run_worker(streams: Sequence[int]) -> None:
    """Run execnet's code with the streams as standard input, output, and errors."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for standard, stream in enumerate(streams):
            os.dup2(stream, standard)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["-c"]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(_BOOTSTRAP, vars(main))
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        # An exit of the interpreter would also free each of millions of objects.
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _connect(address: str) -> None:
    """Give standard input, output, and errors to a worker, and wait for its exit."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"\0"], [0, 1, 2])
        for stream in (0, 1):
            os.close(stream)
        with contextlib.suppress(KeyboardInterrupt, ConnectionError):
            connection.recv(1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        # An interrupt ends the workers; the server ends when pytest does.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    else:
        _connect(sys.argv[2])
