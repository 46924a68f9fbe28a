"""A stored answer's stream at the pace of a model, for clients that cannot take it at once."""

import asyncio
import re
from collections.abc import AsyncIterator

_EVENT = re.compile(rb".*?\n\n|.+\Z", re.DOTALL)


async def paced(body: bytes, tokens: int, per_second: float) -> AsyncIterator[bytes]:
    """The events of a stream, the first one at once.

    Args:
        body: the whole stream.
        tokens: that its events say; 0 where that is not known, and each event counts as one.
        per_second: tokens.
    """
    events, loop = _EVENT.findall(body), asyncio.get_running_loop()
    seconds = (tokens or len(events)) / per_second / max(1, len(events))
    began = loop.time()
    for number, event in enumerate(events):
        # Of the beginning, so that what one event is late does not add up.
        wait = began + number * seconds - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        yield event
