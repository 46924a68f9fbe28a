"""What the embedded engine needs of an API: the request in the engine's terms, and a writer of what it says."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from kvproxy.apis.codecs.output_formats import ToolUse
from kvproxy.apis.json import Json, JsonMap, JsonObject
from kvproxy.apis.request import ApiRequest
from kvproxy.generation import Delta, Grammar


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt for a chat template: messages and tools in the format of OpenAI's chat."""

    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] = ()

    def to_chat(self) -> JsonObject:
        """Return the fields of a chat request."""
        messages: JsonObject = {"messages": list[Json](self.messages)}
        return {**messages, "tools": list[Json](self.tools)} if self.tools else messages


PromptInput: TypeAlias = Conversation | str | tuple[int, ...]
"""A conversation, a raw text, or token ids."""


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    """What a request asks of the engine. None leaves a choice to the model's recommendation.

    Attributes:
        prompt: what to go on from.
        echo: begin the answer with the prompt.
        salt: requests with different salts never share blocks.
        queue_priority: a lower one is served first.
        grammar: what the answer must look like.
        tools: which tools it may call.
    The others: see `generation.SamplingParams`.
    """

    prompt: PromptInput
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    ignore_eos: bool = False
    echo: bool = False
    salt: str | None = None
    queue_priority: int = 0
    grammar: Grammar | None = None
    tools: ToolUse | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt that a completion begins with: its text, and the text of its first token, which has no probability."""

    text: str
    first_token: str


class ResponseEncoder(Protocol):
    """Writes one answer in an API's form, as a stream or whole."""

    def write(self, piece: Delta) -> Iterator[bytes]:
        """Take a piece, and give the events that tell of it."""

    def end(self) -> Iterator[bytes]:
        """The events after the last piece."""

    def whole(self) -> JsonObject:
        """The answer as one object, once all pieces were taken."""


class Codec(Protocol):
    """One API in the engine's terms."""

    def decode_prompt(self, body: JsonMap) -> PromptInput:
        """The prompt of a request; raises InvalidRequest where it has parts that are no text."""

    def decode(self, body: JsonMap) -> DecodedRequest:
        """The request; raises InvalidRequest for what the engine cannot honour."""

    def encoder(self, request: ApiRequest, model: str, echo: Echo | None) -> ResponseEncoder:
        """For one answer.

        Args:
            model: the served model's name.
            echo: what each completion begins with.
        """
