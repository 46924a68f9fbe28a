"""What goes wrong on one event stream: logged in one line, and not again for a while, however often it happens."""

import logging
import time
from collections.abc import Callable

QUIET = 60.0
"""Seconds between two lines of one stream."""
_log = logging.getLogger(__name__)


class Troubles:
    """Log of one stream.

    Args:
        endpoint: the stream's address, named in each line.
        clock: seconds, ever growing.

    Attributes:
        last: what went wrong last; None where nothing has.
    """

    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.last: str | None = None
        self._endpoint = endpoint
        self._clock = clock
        self._told = float("-inf")
        self._untold = 0

    def tell(self, text: str, error: BaseException | None = None) -> None:
        """Log a line, or only count it when the last one is not long ago; with an error, its traceback too."""
        self.last = text
        now = self._clock()
        if now - self._told < QUIET:
            self._untold += 1
            return
        more = f" ({self._untold} more since the last line)" if self._untold else ""
        _log.warning("KV events of %s: %s%s", self._endpoint, text, more, exc_info=error)
        self._told, self._untold = now, 0
