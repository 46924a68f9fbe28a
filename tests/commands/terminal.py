"""A terminal emulator for commands that draw a screen."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyte

from tests.commands.run import ROOT, command, variables

_TIMEOUT = 60.0


class Terminal:
    def __init__(self, command: Sequence[str], size: tuple[int, int], env: dict[str, str]) -> None:
        columns, lines = size
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.sent = bytearray()
        self._end, other = pty.openpty()
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        streams: Any = {"stdin": other, "stdout": other, "stderr": other}
        control = partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0)
        self.process = subprocess.Popen(
            command, env=env, cwd=ROOT, start_new_session=True, preexec_fn=control, **streams
        )
        os.close(other)

    def shows(self, *texts: str) -> str:
        """Wait until the screen shows all texts, and return it; line breaks count as blanks."""
        return self.until(lambda screen: all(text in screen or text in " ".join(screen.split()) for text in texts))

    def until(self, holds: Callable[[str], bool]) -> str:
        """Wait until the screen satisfies a predicate, and return it without trailing blanks."""
        end = time.monotonic() + _TIMEOUT
        while True:
            self._read(0.1)
            text = "\n".join(line.rstrip() for line in self._screen.display)
            if holds(text):
                return text
            assert time.monotonic() < end, f"waited for {holds!r}:\n{text}"

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)

    def _read(self, seconds: float) -> None:
        # Linux reports the end of a terminal as an error.
        with contextlib.suppress(OSError):
            while select.select([self._end], [], [], seconds)[0]:
                part = os.read(self._end, 65_536)
                self.sent += part
                self._stream.feed(part)
                seconds = 0.0


@contextlib.contextmanager
def terminal(command: Sequence[str], size: tuple[int, int], env: dict[str, str]) -> Iterator[Terminal]:
    """Run a command at a terminal of a size in columns and lines."""
    screen = Terminal(command, size, env)
    try:
        yield screen
    finally:
        screen.close()


@contextlib.contextmanager
def top(url: str, columns: int) -> Iterator[Terminal]:
    """`kvproxy top` at a terminal of 50 lines, once it shows the first figures."""
    env = variables(url, {"TERM": "xterm-256color"})
    del env["COLUMNS"]
    with terminal(command("top", "--interval", "0.2"), (columns, 50), env) as screen:
        screen.shows("First byte, ms")
        yield screen
