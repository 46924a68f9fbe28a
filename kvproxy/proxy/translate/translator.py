"""What a translator does: a request to chat completions, and their chunks back to the API's own events."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from kvproxy.errors import InvalidRequest
from kvproxy.proxy.backend import Call, Reply


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is being answered; `cached_tokens` of the prompt came from the prefix cache."""

    call: Call
    model: str
    prompt_tokens: int
    cached_tokens: int


class Translator(Protocol):
    """One API in terms of another."""

    def to_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of a chat request that asks the same; raises InvalidRequest for what chat cannot say."""

    def events(self, chunks: AsyncIterator[dict[str, Any]], job: Job, reply: Reply) -> AsyncIterator[bytes]:
        """Chat chunks of one choice as the API's events; `reply.usage` is known when the chunks have ended."""


def renamed(body: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The fields of a body that another API has too, under its names."""
    return {target: body[source] for source, target in names.items() if body.get(source) is not None}


def refuse(body: dict[str, Any], names: tuple[str, ...]) -> None:
    """Refuse fields that the embedded engine cannot honour."""
    for name in names:
        if body.get(name):
            raise InvalidRequest(f"the embedded engine has no {name}: leave it out, or use --upstream", param=name)


async def texts(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[tuple[str, str | None]]:
    """Each chunk's text, and the reason why the answer ends with it."""
    async for chunk in chunks:
        for choice in chunk["choices"]:
            text, reason = choice["delta"].get("content") or "", choice["finish_reason"]
            if text or reason:
                yield text, reason
