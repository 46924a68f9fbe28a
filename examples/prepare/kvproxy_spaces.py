"""Collapses repeated spaces in user messages, so that requests that differ only by spaces have one cache key."""

import re

from kvproxy.apis.json import Json, objects
from kvproxy.exchange import Exchange
from kvproxy.flow.layers.layer import PathContext


class CollapseSpaces:
    def __init__(self, context: PathContext) -> None: ...

    async def prepare(self, exchange: Exchange) -> None:
        request = exchange.api_request
        if request.api.name != "chat":
            return
        messages: list[Json] = []
        for message in objects(request.body.get("messages")):
            content = message.get("content")
            is_text = message.get("role") == "user" and isinstance(content, str)
            messages.append({**message, "content": re.sub(" +", " ", content)} if is_text else message)
        if messages != request.body["messages"]:
            # The tag of the journal names the change.
            exchange.request = request.with_body({**request.body, "messages": messages}, "spaces")
