"""A shell whose `kvproxy` runs in this process: a process for each command of the pages would take a second of CPU time."""

import base64
import contextlib
import socketserver
import threading
from collections.abc import Iterator

from tests.commands.run import kvproxy

WIDTH = 80
"""Columns of the terminal."""
_FUNCTION = """
kvproxy() {
  {
    local terminal=0 code error
    [ -t 1 ] && terminal=1
    printf '%%s\\0' "$PWD" "$terminal" "$@" | base64 -w 0 >&3
    echo >&3
    read -r code error <&3
    printf %%s "$error" | base64 -d >&2
    cat <&3
    return "$code"
  } 3<>/dev/tcp/127.0.0.1/%d
}
"""


@contextlib.contextmanager
def kvproxy_function(url: str, width: int = WIDTH, **environment: str) -> Iterator[str]:
    """Yield the definition of the shell function; its proxy is at a URL."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            folder, terminal, *arguments = base64.b64decode(self.rfile.readline()).decode().split("\0")[:-1]
            with contextlib.chdir(folder):
                done = kvproxy(*arguments, url=url, columns=width if terminal == "1" else None, **environment)
            error = base64.b64encode(done.stderr.encode()).decode()
            self.wfile.write(f"{done.returncode} {error}\n{done.stdout}".encode())

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield _FUNCTION % server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
