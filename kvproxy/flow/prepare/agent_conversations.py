"""Recognises a later request of a conversation, and the conversations of sub-agents."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvproxy.apis.api_request import ApiRequest, session_name
from kvproxy.apis.json import JsonObject
from kvproxy.apis.message_parts import without_moved_texts
from kvproxy.apis.sub_agents import called_digests, prompt_digests
from kvproxy.flow.conversation_digests import SYSTEM_ROLES, conversation_digests, messages_of


@dataclass(frozen=True, slots=True)
class AgentConversation:
    """The beginning of a conversation, without its model.

    Attributes:
        name: the client's name for the session; None without one.
        first: digest of the tenant and the first message.
        answered: the same with the first answer; None if the conversation has one message.
        prompts: digests of the texts of the first message, by which a parent recognises its sub-agents.
    """

    name: str | None
    first: bytes
    answered: bytes | None
    prompts: frozenset[bytes]

    @classmethod
    def of(cls, request: ApiRequest) -> "AgentConversation":
        messages = messages_of(request.body)[:2]
        unscoped = replace(request, body={"model": ""})
        digests = list(conversation_digests(unscoped, messages))
        answered = digests[1] if len(digests) > 1 else None
        return cls(session_name(request), digests[0], answered, _prompts(request, messages))

    def continues(self, earlier: "AgentConversation") -> bool:
        """Whether this is a later request of the same session, also with another model or an edited history."""
        if self.first != earlier.first:
            return False
        if self.name is not None or earlier.name is not None:
            # Sub-agents have the name of their session, and begin with another message.
            return self.name == earlier.name
        return self.answered is not None and earlier.answered in (None, self.answered)

    def may_be_called_by(self, parent: "ToolCalls") -> bool:
        """Whether this is a sub-agent's conversation, whose prompt an argument of the parent's tool calls is."""
        has_same_name = None in (self.name, parent.name) or self.name == parent.name
        return has_same_name and bool(self.prompts & parent.prompts)


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The tool calls in a request whose results it has.

    Attributes:
        name: the client's name for the session; None without one.
        prompts: digests of the arguments of the calls, without texts of the first message.
    """

    name: str | None
    prompts: frozenset[bytes]

    @classmethod
    def of(cls, request: ApiRequest) -> "ToolCalls":
        messages = messages_of(request.body)
        answers = (message for message in messages if message.get("role") == "assistant")
        called = {digest for answer in answers for digest in called_digests(answer)}
        return cls(session_name(request), frozenset(called) - _prompts(request, messages))


def _prompts(request: ApiRequest, messages: Sequence[JsonObject]) -> frozenset[bytes]:
    first = next((message for message in messages if message.get("role") not in SYSTEM_ROLES), None)
    return frozenset(prompt_digests(without_moved_texts(first, request.moved_texts)))
