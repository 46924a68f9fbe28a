"""Replays a stored stream at the speed of a model, for clients that cannot process it all at once."""

import asyncio
import re
from collections.abc import AsyncIterator

_EVENT = re.compile(rb".*?\n\n|.+\Z", re.DOTALL)


async def paced(body: bytes, tokens: int, per_second: float) -> AsyncIterator[bytes]:
    """The events of a stream, with pauses.

    Args:
        body: the complete stream.
        tokens: its number of tokens; if it is 0, each event counts as a token.
        per_second: tokens per second.
    """
    events, loop = _EVENT.findall(body), asyncio.get_running_loop()
    seconds = (tokens or len(events)) / per_second / max(1, len(events))
    began = loop.time()
    for number, event in enumerate(events):
        # Relative to the start, so that delays do not accumulate.
        wait = began + number * seconds - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        yield event
