"""Server-sent events of scripted responses."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping

from starlette.responses import StreamingResponse


def event_stream(
    events: Iterable[tuple[str | None, object]], *, done: bool = False, headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """Return a stream of events with optional names; `done` ends it with `[DONE]`."""

    async def parts() -> AsyncIterator[str]:
        for name, data in events:
            yield (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"
        if done:
            yield "data: [DONE]\n\n"

    return StreamingResponse(parts(), media_type="text/event-stream", headers=headers)
