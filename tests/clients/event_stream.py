"""Server-sent events of scripted responses."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping

from starlette.responses import StreamingResponse


def event_stream(
    events: Iterable[tuple[str | None, object]],
    *,
    pause: float,
    done: bool = False,
    headers: Mapping[str, str] | None = None,
) -> StreamingResponse:
    """Return a stream of events with optional names, a pause in seconds after the first one; `done` ends it with `[DONE]`."""

    async def parts() -> AsyncIterator[str]:
        for place, (name, data) in enumerate(events):
            yield (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"
            if place == 0:
                # So that a proxy that does not hold back the first event sends it by itself.
                await asyncio.sleep(pause)
        if done:
            yield "data: [DONE]\n\n"

    return StreamingResponse(parts(), media_type="text/event-stream", headers=headers)
