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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyte

from tests.commands.run import ROOT, command, variables

_PATIENCE = 30.0


class Terminal:
    """A command at a terminal of a given size.

    Args:
        command: what to run.
        size: columns and lines.
        env: its environment.
    """

    def __init__(self, command: Sequence[str], size: tuple[int, int], env: Mapping[str, str], cwd: Path = ROOT) -> None:
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self.sent = bytearray()
        """Everything that the command wrote."""
        self._end, other = pty.openpty()
        self.resize(*size)
        self.process = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            env=env,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        )
        os.close(other)

    def resize(self, columns: int, lines: int) -> None:
        """Resize the terminal; the command receives SIGWINCH."""
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def lines(self) -> list[str]:
        """Return the lines of the screen without trailing blanks."""
        self._read(0.0)
        return [line.rstrip() for line in self._screen.display]

    def shows(self, *texts: str) -> str:
        """Wait until the screen shows all texts, and return it; line breaks count as blanks."""
        return self.until(lambda screen: all(text in screen or text in " ".join(screen.split()) for text in texts))

    def until(self, holds: "Callable[[str], bool] | str") -> str:
        """Wait until the screen contains a text or satisfies a predicate, and return it."""
        end = time.monotonic() + _PATIENCE
        while True:
            text = "\n".join(self.lines())
            if holds in text if isinstance(holds, str) else holds(text):
                return text
            assert time.monotonic() < end, f"waited for {holds!r}:\n{text}"
            self._read(0.1)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._end, keys.encode())

    def ended(self) -> int:
        """Wait for the exit code of the command."""
        end = time.monotonic() + _PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, "\n".join(self.lines())
            self._read(0.05)
        self._read(0.0)
        return self.process.returncode

    def close(self) -> None:
        """End it, should it still run."""
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
def terminal(command: Sequence[str], size: tuple[int, int], env: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a command at a terminal until the block ends."""
    opened = Terminal(command, size, env)
    try:
        yield opened
    finally:
        opened.close()


@contextlib.contextmanager
def top(url: str, columns: int, *, lines: int = 24, colours: bool = False) -> Iterator[Terminal]:
    """`kvproxy top` at a terminal, once it shows the first figures."""
    env = variables(url, {"TERM": "xterm-256color"})
    for name in ("COLUMNS", "LINES", *(("NO_COLOR",) if colours else ())):
        env.pop(name, None)
    with terminal(command("top", "--interval", "0.2"), (columns, lines), env) as screen:
        screen.until("First byte, ms")
        yield screen
