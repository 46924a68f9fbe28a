"""Reads single keys of a terminal."""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial


@contextlib.contextmanager
def key_presses() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for some seconds or until a key is pressed, and returns the keys. Ctrl-C interrupts it.

    Keys are not echoed. If stdin is no terminal, the function waits for all the seconds.
    """
    if not sys.stdin.isatty():
        yield partial(_read, None)
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield partial(_read, terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


def _read(terminal: int | None, seconds: float) -> str:
    is_pressed = terminal is not None and bool(select.select([terminal], [], [], seconds)[0])
    keys = os.read(terminal, 64) if is_pressed and terminal is not None else b""
    if terminal is None or (is_pressed and not keys):
        time.sleep(seconds)
    return keys.decode(errors="replace")
