"""An upstream with Anthropic's rules for breakpoints, bills, and diagnoses; its answers are scripted by tests."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.clients.agent_script import Conversation, Part, Text
from tests.clients.anthropic_api import AnthropicApi, ApiError, blocks_of, check_marks, usage_of
from tests.clients.prompt_cache import InvalidMarksError, PromptCache, rules_of


def _yes(conversation: Conversation) -> Sequence[Part]:
    return [Text("Yes.")]


class AnthropicUpstream:
    """Answers each request with the contents of `answers`, then with a constant text.

    Args:
        separate_lifetimes: a prefix that was stored for five minutes is not found with one hour, and the reverse.
    """

    def __init__(
        self,
        answers: Sequence[list[dict[str, Any]]] = (),
        clock: Callable[[], float] = time.time,
        *,
        separate_lifetimes: bool = False,
    ) -> None:
        cache = PromptCache(clock, separate_lifetimes)
        self.api = AnthropicApi(_yes, cache=cache, answers=list(answers))

    async def answer(self, request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse({"object": "list", "data": []}, 200 if request.url.path == "/v1/models" else 404)
        return await self.api.answer(request)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Received requests."""
        return self.api.bodies

    @property
    def usages(self) -> list[dict[str, Any]]:
        """Usage of the answered requests."""
        return [usage_of(usage, 0) for usage in self.api.usages]

    @property
    def refused(self) -> list[str]:
        """Messages of errors."""
        return self.api.errors

    def evict(self) -> None:
        """Drop all stored prefixes."""
        self.api.cache.clear()


def broken_rule(body: Mapping[str, Any]) -> str | None:
    """Return why the provider would refuse the breakpoints of a request; None if it would not."""
    try:
        check_marks(body)
        PromptCache().use(rules_of(body["model"]), list(blocks_of(body)), "")
    except (ApiError, InvalidMarksError) as error:
        return str(error)
    return None
